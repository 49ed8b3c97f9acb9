// Sidecars replaces the containers that are injected into agents. Each writes the files and serves
// the ports that the next one waits for, with the names in the rendered manifests, and fails if
// these are not as the real program needs them. Only the one for AuthBridge really checks and
// exchanges tokens, with the Keycloak, the agent and the tool that are here too. The first
// argument, or the name python, says which one runs.
package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/armature-dev/armature/functions/multi"
)

func main() {
	log.SetFlags(0)
	if filepath.Base(os.Args[0]) == "python" {
		exit(python(os.Args[1:]))
	}
	programs := map[string]func() error{
		"proxy-init": proxyInit, "spiffe-helper": spiffeHelper, "auth-proxy": authProxy,
		"envoy-proxy": envoyProxy, "authbridge-proxy": authBridge,
		// The programs that these connect to.
		"keycloak": keycloak, "agent": agent, "tool": tool, "mcp": mcpServer,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		exit(fmt.Errorf("%q is none of the sidecars", os.Args))
	}
	log.Print(os.Args[1], " starts")
	exit(programs[os.Args[1]]())
}

func exit(err error) {
	if err != nil {
		log.Fatal(err)
	}
	os.Exit(0)
}

// proxyInit checks that it could redirect the pod's connections.
func proxyInit() error {
	if err := need("PROXY_PORT", "INBOUND_PROXY_PORT", "PROXY_UID", "POD_IP"); err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	found := regexp.MustCompile(`(?m)^CapEff:\s+(\w+)$`).FindSubmatch(status)
	if found == nil {
		return errors.New("the kernel does not report the capabilities")
	}
	capabilities, err := strconv.ParseUint(string(found[1]), 16, 64)
	if err != nil {
		return err
	}
	const netAdmin = 12
	if capabilities&(1<<netAdmin) == 0 {
		return errors.New("the capability NET_ADMIN is missing")
	}
	return nil
}

// spiffeHelper checks that the Workload API exists, fetches no token from it, and writes a made-up
// one.
func spiffeHelper() error {
	if len(os.Args) != 4 || os.Args[2] != "-config" {
		return fmt.Errorf("the arguments are %q", os.Args[2:])
	}
	config, err := os.ReadFile(os.Args[3])
	if err != nil {
		return err
	}
	setting := func(name string) string {
		found := regexp.MustCompile(name + `\s*=\s*"?([^",}\n]+)`).FindSubmatch(config)
		if found == nil {
			log.Fatalf("%s lacks %s", os.Args[3], name)
		}
		return string(found[1])
	}
	api, err := net.Dial("unix", setting("agent_address"))
	if err != nil {
		return err
	}
	api.Close()
	http.HandleFunc(setting("readiness_path"), func(http.ResponseWriter, *http.Request) {})
	token := "e30." +
		base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"spiffe://cluster.local/stand-in"}`)) +
		".none"
	if err := os.WriteFile(filepath.Join(setting("cert_dir"), setting("jwt_svid_file_name")),
		[]byte(token), 0o644); err != nil {
		return err
	}
	return serve(":" + setting("bind_port"))
}

// python runs client-registration's two programs: one prints the token's
// subject, the other registers the client.
func python(args []string) error {
	switch {
	case len(args) == 2 && args[0] == "-c":
		log.Print("client-registration starts")
		token, err := io.ReadAll(os.Stdin)
		if err != nil {
			return err
		}
		_, payload, _ := strings.Cut(string(token), ".")
		payload, _, _ = strings.Cut(payload, ".")
		claims, err := base64.RawURLEncoding.DecodeString(payload)
		if err != nil {
			return err
		}
		var subject struct{ Sub string }
		if err := json.Unmarshal(claims, &subject); err != nil {
			return err
		}
		_, err = fmt.Print(subject.Sub)
		return err
	case len(args) == 1 && args[0] == "client_registration.py":
		if err := need("KEYCLOAK_URL", "KEYCLOAK_REALM", "KEYCLOAK_ADMIN_USERNAME",
			"KEYCLOAK_ADMIN_PASSWORD", "CLIENT_NAME"); err != nil {
			return err
		}
		return os.WriteFile(os.Getenv("SECRET_FILE_PATH"), []byte("none"), 0o644)
	}
	return fmt.Errorf("python is not to run %q", args)
}

func authProxy() error {
	if err := need("LISTEN_PORT", "TARGET_SERVICE_URL", "ISSUER", "JWKS_URL", "AUDIENCE"); err != nil {
		return err
	}
	return serve(":" + os.Getenv("LISTEN_PORT"))
}

// envoyProxy listens, and prints the audiences of its routes whenever they change.
func envoyProxy() error {
	if err := need("TOKEN_URL", "TARGET_AUDIENCE"); err != nil {
		return err
	}
	for _, file := range []string{"/etc/envoy/envoy.yaml", os.Getenv("CLIENT_ID_FILE"),
		os.Getenv("CLIENT_SECRET_FILE")} {
		if _, err := os.ReadFile(file); err != nil {
			return err
		}
	}
	go watchRoutes()
	return serve(":15124")
}

func watchRoutes() {
	audience := regexp.MustCompile(`target_audience: *"?([^"\s]+)`)
	for last := ""; ; time.Sleep(50 * time.Millisecond) {
		routes, err := os.ReadFile(os.Getenv("ROUTES_CONFIG_PATH"))
		if err != nil {
			log.Fatal(err)
		}
		now := "routes to"
		for _, found := range audience.FindAllSubmatch(routes, -1) {
			now += " " + string(found[1])
		}
		if now != last {
			log.Print(now)
			last = now
		}
	}
}

func need(names ...string) error {
	var errs []error
	for _, name := range names {
		if os.Getenv(name) == "" {
			errs = append(errs, fmt.Errorf("%s is not set", name))
		}
	}
	return multi.Errors(errs...)
}

// serve answers every request with 200, until it is stopped.
func serve(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	go func() { log.Fatal(http.Serve(listener, nil)) }()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
	return nil
}
