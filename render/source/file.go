package source

import (
	"io/fs"
	"slices"
	"syscall"
)

// readFile appends a file to buf. Unlike os.ReadFile it neither asks for the
// size nor registers with the poller, which is most of what a small file costs.
func readFile(name string, buf []byte) ([]byte, error) {
	fd, err := open(name)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	defer syscall.Close(fd)
	for {
		buf = slices.Grow(buf, 8<<10)
		n, err := syscall.Read(fd, buf[len(buf):cap(buf)])
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return nil, &fs.PathError{Op: "read", Path: name, Err: err}
		case n == 0:
			return buf, nil
		default:
			short := n < cap(buf)-len(buf)
			buf = buf[:len(buf)+n]
			if len(buf) > MaxFile || short {
				return buf, nil // a regular file that gives less has no more
			}
		}
	}
}

func open(name string) (int, error) {
	for {
		fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != syscall.EINTR {
			return fd, err
		}
	}
}

// writeFile writes a new file.
func writeFile(name string, data []byte) error {
	fd, err := syscall.Open(name, syscall.O_WRONLY|syscall.O_CREAT|syscall.O_EXCL|syscall.O_CLOEXEC, 0o644)
	if err != nil {
		return &fs.PathError{Op: "create", Path: name, Err: err}
	}
	for len(data) > 0 {
		n, err := syscall.Write(fd, data)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			syscall.Close(fd)
			return &fs.PathError{Op: "write", Path: name, Err: err}
		}
		data = data[n:]
	}
	if err := syscall.Close(fd); err != nil {
		return &fs.PathError{Op: "close", Path: name, Err: err}
	}
	return nil
}
