package templates_test

import (
	"fmt"

	"github.com/armature-dev/armature/builds/compose/templates"
)

func ExampleTemplateName() {
	fmt.Println(templates.TemplateName("buildpack-dev"))
	// Output: pipeline-template-buildpack-dev
}
