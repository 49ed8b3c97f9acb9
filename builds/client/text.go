package client

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/armature-dev/armature/functions/text"
)

// Text is the end of a log, as a page shows it.
type Text struct {
	Lines []string
	// Cut says which part of the log Lines has; empty means all.
	Cut string
}

// maxLine bounds a line of a page, in bytes.
const maxLine = 8 << 10

// ansi matches the escape sequences of a terminal: CSI, OSC up to its end, and the short ones.
var ansi = text.Pattern(`\x1b(\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(\x07|\x1b\\)?|[ -/]*[0-~])`)

// Clean returns a line of a log without escape sequences. It leaves out text that a carriage return
// overwrites on a terminal, and shows any other control character as a code.
func Clean(line []byte) string {
	content := strings.TrimRight(ansi().ReplaceAllString(string(line), ""), "\r\n")
	if at := strings.LastIndexByte(content, '\r'); at >= 0 {
		content = content[at+1:]
	}
	return text.Plain(content)
}

// ReadText reads the last lines of a log, at most lines of them and size bytes. It reads at most
// limit bytes of the log.
func ReadText(log io.Reader, lines, size, limit int) (Text, error) {
	var t Text
	var bytesRead, kept, skipped int
	reader := bufio.NewReaderSize(log, maxLine)
	for bytesRead < limit {
		line, long, err := reader.ReadLine()
		if errors.Is(err, io.EOF) {
			if skipped > 0 {
				t.Cut = fmt.Sprintf("the last %s", text.Count(len(t.Lines), "line"))
			}
			return t, nil
		} else if err != nil {
			return t, fmt.Errorf("reading a log: %w", err)
		}
		bytesRead += len(line) + 1
		for long && len(line) > maxLine-utf8.UTFMax && !utf8.Valid(line) { // Keep characters whole.
			line = line[:len(line)-1]
		}
		content := Clean(line)
		if long {
			content += " … (the rest of this line is not shown)"
		}
		for long && err == nil && bytesRead < limit {
			line, long, err = reader.ReadLine()
			bytesRead += len(line)
		}
		t.Lines = append(t.Lines, content)
		for kept += len(content) + 1; len(t.Lines) > lines ||
			kept > size && len(t.Lines) > 1; skipped++ {
			kept -= len(t.Lines[0]) + 1
			t.Lines = t.Lines[1:]
		}
	}
	t.Cut = fmt.Sprintf("the last lines of the first %d MiB", limit>>20)
	return t, nil
}
