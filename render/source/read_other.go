//go:build !unix

package source

import "os"

func readFile(name string, buf []byte) ([]byte, error) {
	data, err := os.ReadFile(name)
	return append(buf, data...), err
}

func writeFile(name string, data []byte) error { return os.WriteFile(name, data, 0o644) }
