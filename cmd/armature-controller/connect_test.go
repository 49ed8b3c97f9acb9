package main

import (
	"net"
	"testing"
)

// connect ends well where its last attempt connected, and not where it did not.
func TestConnect(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) error {
		cmd := command()
		cmd.SetArgs(append([]string{"connect"}, args...))
		return cmd.ExecuteContext(t.Context())
	}
	if run(address) == nil {
		t.Error("it connects to nothing")
	}
	go run("--listen", address)
	if err := run("--for", "2s", address); err != nil {
		t.Errorf("it does not connect to a listener that comes later: %v", err)
	}
	for _, wrong := range [][]string{{}, {"--listen", address, address}} {
		if _, usage := run(wrong...).(usageError); !usage {
			t.Errorf("%v is no error of usage", wrong)
		}
	}
}
