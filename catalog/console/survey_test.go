package console

import (
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
)

// A panic while packages are looked at is logged, and the console goes on.
func TestSurveyPanics(t *testing.T) {
	logged := make(chan string, 10)
	// it has no client
	c := &Cluster{log: funcr.New(func(_, args string) { logged <- args }, funcr.Options{})}
	for range 2 {
		if stocks := c.stocksOf(t.Context(), map[string]uint64{"travel": 1}); len(stocks) > 0 {
			t.Errorf("it knows of %v", stocks)
		}
		select {
		case <-logged:
		case <-time.After(time.Minute):
			t.Fatal("nothing is logged")
		}
		select {
		case <-c.survey.first:
		case <-time.After(time.Minute):
			t.Fatal("the survey does not end")
		}
	}
}
