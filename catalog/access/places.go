package access

import "sync"

// Places limits what is open at the same time, of all accounts and of each, so that one account
// leaves places to others.
type Places struct {
	all, each int

	mu   sync.Mutex
	open int
	by   map[string]int
}

// NewPlaces returns places for all accounts together and for each.
func NewPlaces(all, each int) *Places { return &Places{all: all, each: each, by: map[string]int{}} }

// Enter takes a place for an account; nil where there is none.
func (p *Places) Enter(account string) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == p.all || p.by[account] == p.each {
		return nil
	}
	p.open++
	p.by[account]++
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open--
		if p.by[account]--; p.by[account] == 0 {
			delete(p.by, account)
		}
	})
}
