package oci_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/armature-dev/armature/render/deliver/oci"
)

// A registry that redirects in a circle is left.
func TestRedirectsInACircle(t *testing.T) {
	var hops atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/manifests/") {
			hops.Add(1)
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
		}
	}))
	defer server.Close()
	_, err := oci.Resolve(t.Context(), strings.TrimPrefix(server.URL, "http://")+"/fleet:v1", "",
		oci.Options{})
	if err == nil || !strings.Contains(err.Error(), "stopped after 10 redirects") {
		t.Error(err)
	}
	if n := hops.Load(); n != 11 {
		t.Errorf("%d redirects were followed", n)
	}
}
