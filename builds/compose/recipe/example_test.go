package recipe_test

import (
	"fmt"

	"github.com/armature-dev/armature/builds/compose/recipe"
)

func ExampleTemplateName() {
	fmt.Println(recipe.TemplateName("buildpack-dev"))
	// Output: pipeline-template-buildpack-dev
}
