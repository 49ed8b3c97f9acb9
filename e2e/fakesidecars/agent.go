package main

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

// agent runs an application without knowledge of a proxy: it listens on APP_PORT, PORT or the
// default of its image, and calls a tool with the token of its caller, by way of HTTP_PROXY. At
// /https it calls the Kubernetes API by way of HTTPS_PROXY.
func agent() error {
	port := cmp.Or(os.Getenv("APP_PORT"), os.Getenv("PORT"), "8000")
	http.HandleFunc("/https", func(w http.ResponseWriter, r *http.Request) {
		client := http.Client{Transport: &http.Transport{Proxy: http.ProxyFromEnvironment,
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		request, err := http.NewRequestWithContext(r.Context(), http.MethodGet,
			"https://kubernetes.default.svc/version", nil)
		if err != nil {
			log.Fatal(err)
		}
		answer, err := client.Do(request)
		if err != nil {
			fmt.Fprintln(w, "no HTTPS:", err)
			return
		}
		answer.Body.Close()
		fmt.Fprintln(w, "HTTPS:", answer.Status)
	})
	http.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "the agent listens on", port)
	})
	http.HandleFunc("/ask", func(w http.ResponseWriter, r *http.Request) {
		request, err := http.NewRequestWithContext(r.Context(), http.MethodGet, "http://tool/", nil)
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("Authorization", r.Header.Get("Authorization"))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer answer.Body.Close()
		w.WriteHeader(answer.StatusCode)
		io.Copy(w, answer.Body)
	})
	return serve(":" + port)
}

// tool tells callers who they are and by which client they call, if the token is for the audience
// "tool".
func tool() error {
	if err := need("ISSUER", "JWKS_URL"); err != nil {
		return err
	}
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		claims, err := authorized(r, os.Getenv("JWKS_URL"), os.Getenv("ISSUER"), "tool")
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		fmt.Fprintf(w, "%s by %s\n", claims.Subject, claims.Client)
	})
	return serve(":8000")
}
