// Command oidc is a real OpenID provider for the tests of people's logins: zitadel/oidc, with its
// login form and its users in memory, and a claim of groups.
//
// It takes an address to listen on, a file of users and the address to which logins return.
package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
	"slices"

	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// user of the file, by id.
type user struct {
	storage.User
	Groups []string
}

// users adds groups to the provider's data about its users.
type users struct {
	*storage.Storage
	all map[string]user
}

// client puts its users' claims into the ID token, as Dex and Keycloak do.
type client struct{ op.Client }

func (client) IDTokenUserinfoClaimsAssertion() bool { return true }
func (client) IsScopeAllowed(scope string) bool     { return scope == "groups" }

func (u users) GetClientByClientID(ctx context.Context, id string) (op.Client, error) {
	c, err := u.Storage.GetClientByClientID(ctx, id)
	if err != nil {
		return nil, err
	}
	return client{c}, nil
}

func (u users) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo,
	request op.IDTokenRequest, scopes []string) error {
	if err := u.Storage.SetUserinfoFromRequest(ctx, info, request, scopes); err != nil {
		return err
	}
	if slices.Contains(scopes, "groups") {
		info.AppendClaims("groups", u.all[request.GetSubject()].Groups)
	}
	return nil
}

func main() {
	address, file, back := os.Args[1], os.Args[2], os.Args[3]
	text, err := os.ReadFile(file)
	check(err)
	known := users{all: map[string]user{}}
	check(json.Unmarshal(text, &known.all))
	store, err := storage.StoreFromFile(file)
	check(err)
	known.Storage = storage.NewStorage(store)
	storage.RegisterClients(storage.WebClient("armature", "of the console", back))
	check(http.ListenAndServe(address,
		exampleop.SetupServer("http://"+address+"/", known, slog.New(slog.DiscardHandler), false)))
}

func check(err error) {
	if err != nil {
		slog.Error("the provider ends", "error", err)
		os.Exit(1)
	}
}
