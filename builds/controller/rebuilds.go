package controller

import (
	"context"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/armature-dev/armature/render/process/managers"
)

// rebuilds spreads the runs that a changed template or step starts: an upgrade of the shipped steps
// concerns every build of a cluster at once. Namespaces take turns.
type rebuilds struct {
	*managers.Questions[struct{}]
	limiter *rate.Limiter
}

// newRebuilds lets so many runs start a minute. wake is called with each build that may start now.
func newRebuilds(ctx context.Context, perMinute int, wake func(types.NamespacedName)) rebuilds {
	return rebuilds{managers.NewQuestions[struct{}](ctx, managers.QuestionOptions{
		Name: "rebuild", Workers: 4, MostOfOne: 1, Timeout: time.Hour, Wake: wake,
	}), rate.NewLimiter(rate.Limit(float64(perMinute)/60), perMinute)}
}

// mayStart reports whether it is a build's turn. One that has to wait is woken then, and may start
// until it is forgotten.
func (r rebuilds) mayStart(build types.NamespacedName) bool {
	_, err := r.Get(build, build.Name, nil, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, r.limiter.Wait(ctx)
	})
	return err == nil
}
