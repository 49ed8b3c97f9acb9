// Command copy is the baseline of the benchmarks: it reads the corpus and writes as many bytes, to
// as many files, as a render of it does.
package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr,
			"copy SIZES IN OUT   read the files below IN that SIZES names, write each with its "+
				"size below OUT")
		os.Exit(2)
	}
	if err := files(os.Args[1], os.Args[2], os.Args[3]); err != nil {
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
	var text []byte // the content to write, which does not matter
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
