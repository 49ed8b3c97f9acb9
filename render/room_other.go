//go:build !linux

package render

func inHugePages([]byte) {}
