// Command copy is what the benchmarks are measured against: it reads the
// corpus and writes as many bytes, to as many files, as a render of it does.
package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const usage = `copy SIZES IN OUT   read the files below IN that SIZES names, write each with its size below OUT
copy SIZE           read standard input, write SIZE bytes to standard output`

func main() {
	var err error
	switch len(os.Args) {
	case 4:
		err = files(os.Args[1], os.Args[2], os.Args[3])
	case 2:
		err = stream(os.Args[1])
	default:
		err = fmt.Errorf("usage:\n%s", usage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "copy:", err)
		os.Exit(1)
	}
}

// files reads with os.ReadFile and writes with os.WriteFile, in one goroutine.
func files(sizes, in, out string) error {
	list, err := os.Open(sizes)
	if err != nil {
		return err
	}
	defer list.Close()
	lines := bufio.NewScanner(list)
	made := ""
	var text []byte // what is written: its content costs nothing
	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), " ")
		size, err := strconv.Atoi(rest)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(filepath.Join(in, name))
		if err != nil {
			return err
		}
		for len(text) < size {
			text = append(text, data...)
		}
		to := filepath.Join(out, name)
		if folder := filepath.Dir(to); folder != made {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
			made = folder
		}
		if err := os.WriteFile(to, text[:size], 0o644); err != nil {
			return err
		}
	}
	return lines.Err()
}

func stream(arg string) error {
	size, err := strconv.Atoi(arg)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	for size > 0 {
		n, err := io.Copy(os.Stdout, bytes.NewReader(data[:min(size, len(data))]))
		if err != nil {
			return err
		}
		size -= int(n)
	}
	return nil
}
