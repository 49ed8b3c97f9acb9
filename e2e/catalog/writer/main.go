// Command writer replaces entries of a store as fast as it can, and prints NAME VERSION after each
// was acknowledged. A test kills it.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"

	"github.com/armature-dev/armature/catalog/store"
	"github.com/armature-dev/armature/catalog/store/database"
	"github.com/armature-dev/armature/functions/api/keys"
)

func main() {
	ctx := context.Background()
	round, err := strconv.Atoi(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	s, err := database.Open(ctx, os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for version := round * 1_000_000; ; version++ {
		for i := range 5 {
			e := store.Entry{Key: store.Key{Resource: "agentcards." + keys.LabelPrefix,
				Namespace: "team1", Name: fmt.Sprintf("agent%d", i)}, UID: strconv.Itoa(i),
				Type: store.Agent, Version: strconv.Itoa(version)}
			for n := range 20 {
				e.Items = append(e.Items,
					store.Item{Kind: store.Skill, Name: fmt.Sprintf("skill%d_v%d", n, version)})
			}
			if _, err := s.Put(ctx, e, true); err != nil {
				log.Fatal(err)
			}
			fmt.Println(e.Name, version)
		}
	}
}
