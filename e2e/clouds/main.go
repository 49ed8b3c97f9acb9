// Command clouds gets credentials like an application that configures none: by the default chain of
// the provider's SDK. It prints the credentials.
//
//	clouds aws
//	clouds gcp
//
// CLOUDS_SERVER, a host and port, replaces all of the provider's servers that the
// SDK asks over HTTPS.
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: clouds aws|gcp")
		os.Exit(2)
	}
	credentials, err := map[string]func(context.Context) (string, error){"aws": aws,
		"gcp": gcp}[os.Args[1]](ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "clouds:", err)
		os.Exit(1)
	}
	fmt.Println(credentials)
}

func aws(ctx context.Context) (string, error) {
	cfg, err := config.LoadDefaultConfig(ctx)
	if err != nil {
		return "", err
	}
	c, err := cfg.Credentials.Retrieve(ctx)
	return fmt.Sprintf("%s in %s by %s", c.AccessKeyID, cfg.Region, c.Source), err
}

func gcp(ctx context.Context) (string, error) {
	ctx = context.WithValue(ctx, oauth2.HTTPClient,
		&http.Client{Transport: toServer(os.Getenv("CLOUDS_SERVER"))})
	c, err := google.FindDefaultCredentials(ctx, "https://www.googleapis.com/auth/cloud-platform")
	if err != nil {
		return "", err
	}
	token, err := c.TokenSource.Token()
	if err != nil {
		return "", err
	}
	return token.AccessToken, nil
}

// toServer sends each request to one server, with the original host.
type toServer string

func (s toServer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Host, r.URL.Scheme, r.URL.Host = r.URL.Host, "http", string(s)
	return http.DefaultTransport.RoundTrip(r)
}
