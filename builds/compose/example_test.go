package compose_test

import (
	"fmt"

	"github.com/armature-dev/armature/builds/compose"
)

func ExampleTemplateName() {
	fmt.Println(compose.TemplateName("buildpack-dev"))
	// Output: pipeline-template-buildpack-dev
}
