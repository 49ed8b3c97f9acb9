package forge

import (
	"context"
	"fmt"
	"net/http"
)

// Account of the credential, by its ID.
func (b *bucket) Account(ctx context.Context) (string, error) {
	var is struct {
		ID string `json:"account_id"`
	}
	if _, err := b.ask(ctx, http.MethodGet, "user", nil, &is); err != nil {
		return "", fmt.Errorf("asking whose credential this is: %w", err)
	}
	return is.ID, nil
}

// Account of the credential.
func (d *center) Account(ctx context.Context) (string, error) { return d.me(ctx) }
