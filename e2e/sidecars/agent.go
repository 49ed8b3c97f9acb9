package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
)

// agent is an application that knows of no proxy: it listens where PORT says, and
// asks a tool with the token that it was asked with, by way of HTTP_PROXY.
func agent() error {
	port := os.Getenv("PORT")
	http.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
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

// tool answers who asks it and by whom, if the token is for the audience "tool".
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
