package asyncactor

import "github.com/armature-dev/armature/functions/migrate"

// moves says what becomes of the fields of a resource.
var moves = []migrate.Rule{
	{Path: "spec", Fate: migrate.Moved, To: "the objects of the actor"},
}
