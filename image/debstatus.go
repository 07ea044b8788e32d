package image

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/unitask/unitask/image/oci"
)

// The Debian packages of a container's image, according to its own dpkg. The image may be hostile, so this host's apt
// reads only a file written here from checked fields.

const (
	maxStatus   = 64 << 20 // bytes of the file
	maxPackages = 20_000   // of one status file
	dpkgStatus  = "var/lib/dpkg/status"
	maxField    = 64 << 10 // bytes of a field of a package
)

// statusFields are the fields that apt needs of an installed package, with the format of their values.
var statusFields = map[string]*regexp.Regexp{
	"Package": debName, "Version": debNumber, "Architecture": regexp.MustCompile(`^[a-z0-9-]{1,30}$`),
	"Multi-Arch": regexp.MustCompile(`^[a-z]{1,20}$`), "Essential": regexp.MustCompile(`^(yes|no)$`),
	"Depends": relations, "Pre-Depends": relations, "Provides": relations, "Conflicts": relations, "Breaks": relations,
	"Replaces": relations,
}

var (
	relations = regexp.MustCompile(`^[A-Za-z0-9+.:~, |()<>=!-]*$`)
	osField   = regexp.MustCompile(`(?m)^(ID|VERSION_CODENAME|PRETTY_NAME)=["']?([A-Za-z0-9 ().,/_+-]{0,80})["']?\s*$`)
)

// ContainerStatus returns the status of a container's dpkg, and the names of its packages. It fails if there is no
// dpkg, or if the image is of another release than this host: apt would fetch other packages.
func ContainerStatus(disk io.ReaderAt) (status []byte, names []string, err error) {
	files, err := oci.ReadFiles(disk, maxStatus, dpkgStatus, "usr/bin/dpkg", "bin/dpkg", "usr/lib/os-release",
		"etc/os-release")
	if err != nil {
		return nil, nil, err
	}
	if files[dpkgStatus] == nil || files["usr/bin/dpkg"] == nil && files["bin/dpkg"] == nil {
		return nil, nil, errors.New("has no dpkg, which installs packages of Debian: begin with an image of Debian or Ubuntu")
	}
	host, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return nil, nil, fmt.Errorf("is not to be compared with this host: %w", err)
	}
	of := files["usr/lib/os-release"]
	if of == nil {
		of = files["etc/os-release"]
	}
	if err := sameRelease(string(of), string(host)); err != nil {
		return nil, nil, err
	}
	status, names, err = readStatus(files[dpkgStatus])
	if err != nil {
		return nil, nil, fmt.Errorf("has a /%s that can't be read: %w", dpkgStatus, err)
	}
	return status, names, nil
}

// sameRelease returns an error if an image is of another release than the host (os-release(5)).
func sameRelease(image, host string) error {
	fields := func(text string) map[string]string {
		found := map[string]string{}
		for _, m := range osField.FindAllStringSubmatch(text, 10) {
			found[m[1]] = m[2]
		}
		return found
	}
	i, h := fields(image), fields(host)
	if i["ID"] == h["ID"] && i["VERSION_CODENAME"] == h["VERSION_CODENAME"] {
		return nil
	}
	named := func(f map[string]string) string {
		if f["PRETTY_NAME"] != "" {
			return f["PRETTY_NAME"]
		}
		return "another system"
	}
	return fmt.Errorf(
		"is %s, and this host's apt has the packages of %s: begin with an image of that, or install in a step of run",
		named(i), named(h))
}

// readStatus returns a checked copy of the installed packages' entries.
func readStatus(text []byte) (status []byte, names []string, err error) {
	var out bytes.Buffer
	for stanza := range strings.SplitSeq(string(text), "\n\n") {
		if strings.TrimSpace(stanza) == "" {
			continue
		}
		if len(names) == maxPackages {
			return nil, nil, fmt.Errorf("more than %d packages", maxPackages)
		}
		fields := map[string]string{}
		for line := range strings.Lines(stanza) {
			name, value, ok := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			if ok && line[0] != ' ' && line[0] != '\t' {
				fields[name] = strings.TrimSpace(value)
			}
		}
		if fields["Status"] != "install ok installed" && fields["Status"] != "hold ok installed" {
			continue
		}
		for name, form := range statusFields {
			if value, there := fields[name]; there && (len(value) > maxField || !form.MatchString(value)) {
				return nil, nil, fmt.Errorf("%.80q has %s: %.80q", fields["Package"], name, value)
			}
		}
		if fields["Package"] == "" || fields["Version"] == "" || fields["Architecture"] == "" {
			return nil, nil, fmt.Errorf("a package %.80q without a version or architecture", fields["Package"])
		}
		fmt.Fprintf(&out, "Package: %s\nStatus: %s\nMaintainer: unitask\nDescription: in the image\n", fields["Package"],
			fields["Status"])
		names = append(names, fields["Package"])
		for _, name := range slices.Sorted(maps.Keys(statusFields)) {
			if name != "Package" && fields[name] != "" {
				fmt.Fprintf(&out, "%s: %s\n", name, fields[name])
			}
		}
		out.WriteByte('\n')
	}
	return out.Bytes(), names, nil
}
