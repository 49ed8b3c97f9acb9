package copies_test

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/randfill"

	builds "github.com/armature-dev/armature/builds/api"
	"github.com/armature-dev/armature/builds/controller/runs"
	updates "github.com/armature-dev/armature/builds/writeback/imageupdate/api"
	"github.com/armature-dev/armature/catalog/api"
	"github.com/armature-dev/armature/catalog/api/kagent"
	"github.com/armature-dev/armature/catalog/kinds"
	sources "github.com/armature-dev/armature/render/deliver/flux/api"
)

// A copy is equal, and shares no pointer, list or map with what it was made of.
func TestCopies(t *testing.T) {
	fill := randfill.New().NilChance(0).NumElements(1, 2)
	for _, o := range []runtime.Object{
		&api.AgentCard{}, &api.AgentCardList{},
		&kagent.MCPServer{}, &kagent.MCPServerList{}, &kagent.RemoteMCPServer{},
		&kagent.RemoteMCPServerList{}, &kinds.AgentCard{}, &kinds.AgentCardList{},
		&builds.AgentBuild{}, &builds.AgentBuildList{}, &updates.ImageUpdate{},
		&updates.ImageUpdateList{}, &sources.RenderedSource{}, &sources.RenderedSourceList{},
		&runs.PipelineRun{}, &runs.PipelineRunList{},
	} {
		fill.Fill(o)
		again := o.DeepCopyObject()
		if !reflect.DeepEqual(o, again) {
			t.Errorf("%T: a copy differs: want %+v, got %+v", o, o, again)
		}
		shared(t, reflect.TypeOf(o).String(), reflect.ValueOf(o), reflect.ValueOf(again))
	}
}

func shared(t *testing.T, path string, a, b reflect.Value) {
	if a.Type() == reflect.TypeFor[*metav1.Time]() || a.Type() == reflect.TypeFor[time.Time]() {
		return // nobody changes one
	}
	switch a.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice:
		if a.IsNil() {
			return
		}
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared", path)
			return
		}
	}
	switch a.Kind() {
	case reflect.Pointer:
		shared(t, path, a.Elem(), b.Elem())
	case reflect.Slice:
		for i := range a.Len() {
			shared(t, path+"[]", a.Index(i), b.Index(i))
		}
	case reflect.Map:
		for _, key := range a.MapKeys() {
			shared(t, path+"{}", a.MapIndex(key), b.MapIndex(key))
		}
	case reflect.Interface, reflect.Array, reflect.Func, reflect.Chan:
		t.Errorf("%s is of a kind that Of does not copy", path)
	case reflect.Struct:
		for i := range a.NumField() {
			shared(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	}
}
