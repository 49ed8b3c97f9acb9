package forge

import (
	"context"
	"fmt"
	"strings"

	gitlab "gitlab.com/gitlab-org/api/client-go"
)

// By reports whether a pull request was opened by an account, as Account names it.
func (p PullRequest) By(account string) bool {
	return account != "" && strings.EqualFold(p.Author, account)
}

// Account of the credential.
func (h *hub) Account(ctx context.Context) (string, error) {
	client, err := h.with(ctx, seePulls)
	if err != nil {
		return "", err
	}
	login, err := h.me(ctx, client)
	if err == nil && h.login.App != nil {
		login = strings.TrimSuffix(login, "[bot]") + "[bot]"
	}
	return login, err
}

// Account of the credential.
func (l *lab) Account(ctx context.Context) (string, error) {
	me, _, err := l.client.Users.CurrentUser(gitlab.WithContext(ctx))
	if err != nil {
		return "", fmt.Errorf("looking up the account of the credential: %w", err)
	}
	return me.Username, nil
}

// Account of the credential.
func (t *tea) Account(ctx context.Context) (string, error) {
	me, _, err := t.client(ctx).GetMyUserInfo()
	if err != nil {
		return "", fmt.Errorf("looking up the account of the credential: %w", err)
	}
	return me.UserName, nil
}
