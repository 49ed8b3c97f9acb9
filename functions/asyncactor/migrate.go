package asyncactor

import "github.com/armature-dev/armature/functions/foreign"

// moves says what becomes of the fields of a resource.
var moves = []foreign.Rule{
	{Path: "spec", Fate: foreign.Moved, To: "the objects of the actor"},
}
