package image

import (
	"archive/tar"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

// A package's scripts are read only from the package itself: a link leads nowhere on this host.
func TestAttackDebScripts(t *testing.T) {
	dir := t.TempDir()
	outside, debs := filepath.Join(dir, "outside"), filepath.Join(dir, "debs")
	err := os.WriteFile(outside, []byte("update-alternatives --install /usr/bin/link link /usr/bin/there 10\n"), 0o600)
	if err = errors.Join(err, os.Mkdir(debs, 0o755)); err != nil {
		t.Fatal(err)
	}
	for i, link := range []string{outside, "/dev/zero", "../../../../../../etc/passwd", "postinst", "preinst"} {
		control := archive(t, &tar.Header{Name: "./preinst", Typeflag: tar.TypeSymlink, Linkname: link})
		data := archive(t, &tar.Header{Name: "./usr/bin/there", Typeflag: tar.TypeReg, Mode: 0o755})
		d := Deb{Name: fmt.Sprintf("evil%d", i), Version: "1"}
		deb := debOf(member("debian-binary", []byte("2.0\n")), member("control.tar", control), member("data.tar", data))
		if err := os.WriteFile(filepath.Join(debs, d.Name+"_1_all.deb"), deb, 0o600); err != nil {
			t.Fatal(err)
		}
		to := t.TempDir()
		found, err := UnpackDebs(t.Context(), debs, []Deb{d}, AMD64, to)
		if err == nil || !strings.Contains(err.Error(), "its preinst is no file") {
			t.Errorf("preinst is a link to %s: %+v %v", link, found, err)
		}
		_, read := os.Lstat(filepath.Join(to, "usr/bin/link"))
		got := fmt.Sprintf("refused %t, read %t", err != nil, read == nil)
		attack.Check(t, fmt.Sprintf("a package's script %d is a link", i), "refused true, read false", got)
	}
}

// All packages share one limit, so many small packages can't fill the disk.
func TestAttackDebBombs(t *testing.T) {
	debs := t.TempDir()
	var list []Deb
	for i := range 5 {
		data := archive(t, &tar.Header{Name: fmt.Sprintf("./usr/share/doc/%d", i), Typeflag: tar.TypeReg, Size: 1000},
			&tar.Header{Name: fmt.Sprintf("./usr/bin/%d", i), Typeflag: tar.TypeReg, Size: 1000})
		d := Deb{Name: fmt.Sprintf("deb%d", i), Version: "1"}
		deb := debOf(member("debian-binary", []byte("2.0\n")), member("control.tar", archive(t)),
			member("data.tar.xz", packed(t, ".xz", data)))
		if err := os.WriteFile(filepath.Join(debs, d.Name+"_1_all.deb"), deb, 0o600); err != nil {
			t.Fatal(err)
		}
		list = append(list, d)
	}
	if _, err := unpackDebs(t.Context(), debs, list, AMD64, t.TempDir(), 10_000); err != nil {
		t.Error(err)
	}
	_, err := unpackDebs(t.Context(), debs, list, AMD64, t.TempDir(), 9_999)
	refused := err != nil && strings.Contains(err.Error(), "unpack deb4_1_all.deb") &&
		strings.Contains(err.Error(), "more than")
	attack.Check(t, "Debian packages that have a byte more than they may: refused", "true", fmt.Sprint(refused))
}

// The alternatives that a package's script names literally.
func TestAlternatives(t *testing.T) {
	for script, want := range map[string]string{
		"":                        "[]",
		"update-alternatives --x": "[]",
		"update-alternatives --install /usr/bin/awk awk /usr/bin/gawk 10\n": "[{/usr/bin/awk /usr/bin/gawk 10}]",
		"  update-alternatives --quiet --install /usr/bin/a a /usr/bin/b 5 \\\n" +
			"\t--slave /usr/share/s s /usr/share/t ; exit\n": "[{/usr/bin/a /usr/bin/b 5} {/usr/share/s /usr/share/t 5}]",
		"update-alternatives --install \"$LINK\" x $PATH 10\n":                         "[]",
		"update-alternatives --install /usr/bin/../../etc/x x /etc/y 10\n":             "[]",
		"update-alternatives --install /usr/bin/x x /../y 10\n":                        "[]",
		"echo --install /usr/bin/x x /usr/bin/y 10\n":                                  "[]",
		"update-alternatives --install /usr/bin/x x /usr/bin/y 99999999999999999999\n": "[{/usr/bin/x /usr/bin/y 999999}]",
		"update-alternatives --remove x /usr/bin/y\n":                                  "[]",
	} {
		if got := fmt.Sprint(alternatives(script)); got != want {
			t.Errorf("%q: %s, want %s", script, got, want)
		}
	}
}

// Folders that stay on the disk as a whole: those with many files, below the ones that all packages share.
func TestDebFolders(t *testing.T) {
	dir := t.TempDir()
	for name, n := range map[string]int{"usr/share/many/deep": 100, "usr/share/few": 3, "usr/bin": 100,
		"usr/lib/x86_64-linux-gnu/more": 70, "opt/x": 1, "var/lib/y": 1, "etc/z": 80} {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for i := range n {
			if err := os.WriteFile(filepath.Join(at, fmt.Sprint(i)), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var found DebFolder
	if err := found.look(dir, AMD64); err != nil || !slices.Equal(found.Crowded,
		[]string{"/usr/share/many", "/etc/z", "/usr/lib/x86_64-linux-gnu/more"}) ||
		!slices.Equal(found.Tops, []string{"/opt", "/var"}) {
		t.Errorf("%+v %v", found, err)
	}
}
