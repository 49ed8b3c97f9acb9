package inject

import (
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/armature-dev/armature/functions/identity"
)

// TestRegistrationScript runs client-registration's script with a program that
// fails at first, as the published one does while Keycloak does not answer. The
// script has to wait for the token, write the client's ID, try again, stay, register
// again when its mounted files change, and end on a signal, so that a Job can
// complete.
func TestRegistrationScript(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 on PATH: the script of client-registration is NOT tested")
	}
	for name, spiffe := range map[string]bool{"with SPIFFE": true, "without SPIFFE": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := render(t, settings(t, kagenti(), func(w *identity.Workload) { w.SPIFFE = spiffe }))
			shared, bin, mounted := t.TempDir(), t.TempDir(), t.TempDir()
			for key, text := range p.data {
				if err := os.WriteFile(filepath.Join(mounted, key), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			program := `#!/bin/sh
if [ "$1" = -c ]; then exec ` + python + ` "$@"; fi
[ "$1" = client_registration.py ] || exit 2
if [ ! -e "` + bin + `/tried" ]; then touch "` + bin + `/tried"; exit 1; fi
echo "secret of $KEYCLOAK_URL, $KEYCLOAK_REALM, $KEYCLOAK_TOKEN_EXCHANGE_ENABLED" >"` + shared + `/new"
mv "` + shared + `/new" "` + shared + `/client-secret.txt"
`
			if err := os.WriteFile(filepath.Join(bin, "python"), []byte(program), 0o755); err != nil {
				t.Fatal(err)
			}
			command := p.containers["client-registration"].Command
			script := strings.NewReplacer("/shared/", shared+"/", "/etc/armature/identity/",
				mounted+"/", "sleep 5", "sleep 0.1", "sleep 1;", "sleep 0.1;").Replace(command[2])
			cmd := exec.Command(command[0], command[1], script)
			cmd.Env = []string{
				"PATH=" + bin + string(filepath.ListSeparator) + os.Getenv("PATH"),
				"TOKEN=" + filepath.Join(shared, "jwt_svid.token"),
				"CLIENT_NAME=default/weather agent",
			}
			cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				// The sleep that the script waited for may outlive it, and may have ended.
				if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); err != nil &&
					err != syscall.ESRCH {
					t.Error(err)
				}
			})
			done := make(chan error, 1)
			go func() { done <- cmd.Wait() }()

			want := "default/weather agent"
			if spiffe {
				time.Sleep(200 * time.Millisecond)
				if _, err := os.Stat(filepath.Join(shared, "client-id.txt")); err == nil {
					t.Error("the client's ID was there before the token")
				}
				want = "spiffe://cluster.local/ns/default/sa/wéather?~"
				// URL-safe and without padding, as tokens are.
				claims := base64.RawURLEncoding.EncodeToString(
					[]byte(`{"sub":"` + want + `","aud":["kagenti-agents"]}`))
				if err := os.WriteFile(filepath.Join(shared, "jwt_svid.token"),
					[]byte("e30."+claims+".c2ln\n"), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			registered := func(with string) {
				t.Helper()
				for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
					secret, err := os.ReadFile(filepath.Join(shared, "client-secret.txt"))
					if err == nil && string(secret) == "secret of "+with+"\n" {
						return
					}
					if time.Now().After(deadline) {
						t.Fatalf("the client secret is %q (%v), and not that of %s", secret, err, with)
					}
				}
			}
			registered("http://keycloak.kagenti-system.svc:8080, default, true")
			// The kubelet replaces all files atomically.
			changed := filepath.Join(mounted, "changed")
			if err := os.WriteFile(changed, []byte("false"), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(changed,
				filepath.Join(mounted, "KEYCLOAK_TOKEN_EXCHANGE_ENABLED")); err != nil {
				t.Fatal(err)
			}
			registered("http://keycloak.kagenti-system.svc:8080, default, false")
			id, err := os.ReadFile(filepath.Join(shared, "client-id.txt"))
			if err != nil || string(id) != want {
				t.Errorf("the client's ID is %q (%v), want %q", id, err, want)
			}
			select {
			case err := <-done:
				t.Fatalf("the script ended, and the sidecar would be started again: %v", err)
			case <-time.After(300 * time.Millisecond):
			}
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("ended with %v", err)
				}
			case <-time.After(time.Minute):
				_ = cmd.Process.Kill()
				t.Error("the script does not end on a signal")
			}
		})
	}
}
