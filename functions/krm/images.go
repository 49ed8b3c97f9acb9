package krm

import (
	"maps"
	"slices"
)

// Images gives the images that an object as plain Go values runs, sorted: those of all
// containers, and of image volumes, wherever it has them. Custom resources have pod
// templates, too.
func Images(object any) []string {
	found := make(map[string]bool)
	collectImages(object, found)
	return slices.Sorted(maps.Keys(found))
}

func collectImages(value any, found map[string]bool) {
	switch value := value.(type) {
	case map[string]any:
		for key, child := range value {
			switch key {
			case "containers", "initContainers", "ephemeralContainers":
				listImages(child, found, "image")
			case "volumes":
				listImages(child, found, "image", "reference")
			}
			collectImages(child, found)
		}
	case []any:
		for _, child := range value {
			collectImages(child, found)
		}
	}
}

// listImages finds a text in each item of a list.
func listImages(list any, found map[string]bool, path ...string) {
	items, _ := list.([]any)
	for _, item := range items {
		for _, key := range path {
			fields, _ := item.(map[string]any)
			item = fields[key]
		}
		if image, ok := item.(string); ok && image != "" {
			found[image] = true
		}
	}
}
