package render_test

import (
	"fmt"
	"strings"

	"github.com/armature-dev/armature/render"
	"github.com/armature-dev/armature/render/source"
)

// A Deployment that opts in gets the identity infrastructure around its
// container; everything else keeps its bytes.
func ExampleRun() {
	src, err := source.ReadStream(strings.NewReader(`apiVersion: apps/v1
kind: Deployment
metadata:
  name: weather
  namespace: team1
  labels: {kagenti.io/inject: enabled}
spec:
  selector: {matchLabels: {app: weather}}
  template:
    metadata:
      labels: {app: weather}
    spec:
      containers:
        - name: agent # stays where it is
          image: registry.example/weather:v1
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := render.Run(src, render.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, file := range result.Files {
		text := string(file.Data)
		fmt.Println(strings.Contains(text, "- name: agent # stays where it is"),
			strings.Contains(text, "name: authbridge-proxy"))
	}
	// Output: true true
}
