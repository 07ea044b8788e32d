package image

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
)

// Paths and addresses inside the guest that the guest's programs know as well.
const (
	guestLib    = "/unitask/lib" // agent.js, rehearsal.js, shim.node
	guestAddr   = "10.0.2.15"    // the one address that netstack serves
	gatewayAddr = "10.0.2.2"     // netstack's own address, and the resolver's
)

// payload is what both kernels have: Node, its libraries, the agent and the
// few files of /etc that Node and libc read.
func (s *Store) payload(arch Arch) (tree, []Part, error) {
	t := tree{}
	var parts []Part
	for _, name := range []string{"node", "libc", "libstdc++", "libgcc", "ca-certificates", guestPart} {
		p, err := s.Part(arch, name)
		if err != nil {
			return nil, nil, err
		}
		parts = append(parts, p)
		switch name {
		case "node":
			t.file("/usr/bin/node", 0o755, p.path("node"))
		case "ca-certificates":
			bundle, err := certBundle(p.path("certs"))
			if err != nil {
				return nil, nil, err
			}
			t.text("/etc/ssl/certs/ca-certificates.crt", bundle)
		case guestPart:
			t.file(guestLib+"/shim.node", 0o755, p.path("shim.node"))
		default:
			if err := t.copyRoot(p); err != nil {
				return nil, nil, fmt.Errorf("read part %s: %w", name, err)
			}
		}
	}
	for _, js := range []string{"agent.js", "rehearsal.js"} {
		text, err := fs.ReadFile(s.guest, "agent/"+js)
		if err != nil {
			return nil, nil, err
		}
		t.text(guestLib+"/"+js, string(text))
	}
	t.text("/etc/passwd", "root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n")
	t.text("/etc/group", "root:x:0:\nuser:x:1000:\n")
	t.text("/etc/hosts", "127.0.0.1 localhost unitask\n::1 localhost\n")
	t.text("/etc/hostname", "unitask\n")
	t.text("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n")
	t.text("/etc/resolv.conf", "nameserver "+gatewayAddr+"\noptions timeout:2 attempts:1\n")
	return t, parts, nil
}

// certBundle joins the certificates of a folder, in the order of their names.
func certBundle(dir string) (string, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.crt"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no certificates in %s", dir)
	}
	sort.Strings(files)
	var all bytes.Buffer
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return "", err
		}
		all.Write(bytes.TrimSpace(text))
		all.WriteByte('\n')
	}
	return all.String(), nil
}
