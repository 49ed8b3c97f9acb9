//go:build linux

package cluster

import (
	"bytes"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"text/template"
	"time"

	"sigs.k8s.io/yaml"
)

// workloadAPI is the folder that csi mounts into pods. It has a socket of SPIRE's agent.
const workloadAPI = state + "/workload-api"

// spire is the folder of SPIRE's programs. The server is also the command that manages it, by its
// default socket.
const (
	spire        = bin + "/spire"
	spireProgram = spire + "/spire-server"
)

// services returns the commands of services.yaml, by their names.
func (c Cluster) services() (commands map[string][]string, err error) {
	parsed, err := template.ParseFS(config, "config/services.yaml")
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, c.values(nil)); err != nil {
		return nil, err
	}
	return commands, yaml.UnmarshalStrict(text.Bytes(), &commands)
}

// start runs services and restarts each when it ends: a story may kill one.
func start(commands map[string][]string, names ...string) error {
	for _, name := range names {
		command := commands[name]
		if len(command) == 0 {
			return fmt.Errorf("services.yaml has no %s", name)
		}
		out, err := os.Create(filepath.Join(logs, name+".log"))
		if err != nil {
			return err
		}
		go func() {
			for {
				cmd := exec.Command(command[0], command[1:]...)
				cmd.Stdout, cmd.Stderr = out, out
				err := cmd.Run()
				log.Printf("%s ended (%v): starting it again", name, err)
				fmt.Fprintf(out, "--- ended (%v): starting again\n", err)
				time.Sleep(time.Second)
			}
		}()
	}
	return nil
}
