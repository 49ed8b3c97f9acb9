//go:build linux

package cluster

import (
	"archive/tar"
	"encoding/binary"
	"maps"
	"path"
	"slices"
)

// rootlessUser is the user of BuildKit's rootless image.
const rootlessUser = 1000

// rootless adds the parts of BuildKit's rootless image except its programs: the user, its range of
// users, its folders, and newuidmap and newgidmap from the packages' files at root. Debian's are
// setuid, which does not work here; file capabilities do.
func (a *archive) rootless(root string) error {
	a.file("/etc/passwd", 0o644,
		[]byte("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"+
			"nobody:x:65534:65534:nobody:/:/bin/sh\n"))
	a.file("/etc/group", 0o644, []byte("root:x:0:\nuser:x:1000:\nnogroup:x:65534:\n"))
	for _, file := range []string{"/etc/subuid", "/etc/subgid"} {
		a.file(file, 0o644, []byte("user:100000:65536\n"))
	}
	for _, dir := range []string{"/home/user", "/home/user/.local", "/home/user/.local/share",
		"/home/user/.local/share/buildkit", "/home/user/.local/tmp", "/run/user/1000"} {
		if parent := path.Dir(dir); !a.dirs[parent] {
			a.dir(parent, 0o755)
		}
		a.add(tar.Header{Typeflag: tar.TypeDir, Name: dir, Mode: 0o700, Uid: rootlessUser,
			Gid: rootlessUser}, nil)
		a.dirs[dir] = true
	}
	const setgid, setuid = 6, 7 // linux/capability.h
	capabilities := map[string]uint32{"usr/bin/newgidmap": setgid, "usr/bin/newuidmap": setuid}
	programs, err := fromTar(root, func(name string) bool { return capabilities[name] != 0 })
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(capabilities)) {
		a.add(tar.Header{Typeflag: tar.TypeReg, Name: "/" + name, Mode: 0o755,
			PAXRecords: map[string]string{
				"SCHILY.xattr.security.capability": fileCapability(capabilities[name])}}, programs[name])
	}
	return nil
}

// fileCapability returns the extended attribute that grants one capability to a program: struct
// vfs_cap_data, revision 2, effective.
func fileCapability(number uint32) string {
	const revision2, effective = 0x02000000, 1
	out := make([]byte, 20)
	binary.LittleEndian.PutUint32(out, revision2|effective)
	binary.LittleEndian.PutUint32(out[4:], 1<<number)
	return string(out)
}
