package store_test

import (
	"context"
	"fmt"

	"github.com/armature-dev/armature/catalog/store"
)

// An agent is found by the words of its card.
func Example() {
	ctx := context.Background()
	s := store.NewMemory()
	_, err := s.Put(ctx, store.Entry{
		Key:  store.Key{Resource: "agentcards.kagenti.io", Namespace: "team1", Name: "weather"},
		UID:  "the UID of the AgentCard",
		Type: store.Agent,
		Items: []store.Item{
			{Kind: store.Skill, Name: "get_forecast", Description: "The weather of the next days"},
		},
	}, true)
	if err != nil {
		fmt.Println(err)
		return
	}
	hits, err := s.Search(ctx, store.Query{Scope: store.Everything(), Text: "forecast"})
	for _, hit := range hits {
		fmt.Println(hit.Entry.Namespace, hit.Entry.Name, hit.Item.Name, err)
	}
	// Output: team1 weather get_forecast <nil>
}
