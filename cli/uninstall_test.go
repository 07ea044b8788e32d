package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/unitask/unitask/internal/attack"
	layout "github.com/unitask/unitask/internal/home"
)

// uninstall knows each entry of a home.
func TestEntriesOfHome(t *testing.T) {
	dir := layout.Dir("/home")
	known := append(rebuiltIn(dir), yoursIn(dir)...)
	of := reflect.ValueOf(dir)
	for i := range of.NumMethod() {
		method := of.Method(i)
		name := of.Type().Method(i).Name
		if name == "CustomFile" { // in Custom
			continue
		}
		path := method.Call(slices.Repeat([]reflect.Value{reflect.ValueOf("")}, method.Type().NumIn()))[0].String()
		if !slices.Contains(known, path) {
			t.Errorf("uninstall does not know %s, which Dir.%s returns", path, name)
		}
	}
}

// A home that is a link, one with links, and a folder that is not a home.
func TestAttackUninstall(t *testing.T) {
	for name, row := range map[string]struct {
		home    string   // seen from the test's folder
		entries []string // names with a slash at the end are folders; "a>b" is a link to b
		says    string
		left    string
	}{
		"a home": {"home", []string{"home/", "home/images/", "home/runs/"}, "", "home home/runs"},
		"a home that is a link": {"home", []string{"disk/", "disk/images/", "disk/runs/", "home>disk"}, "",
			"disk disk/runs home"},
		"an empty home that is a link": {"home", []string{"disk/", "disk/images/", "home>disk"}, "", ""},
		"an entry that is a link": {"home", []string{"home/", "disk/", "disk/mine", "home/images>../disk"}, "",
			"disk disk/mine home home/images"},
		"a checkout": {"code", []string{"code/", "code/.git/", "code/vendor/", "code/tools/"},
			"code has .git, which is not unitask's", "code code/.git code/tools code/vendor"},
		"a home with a foreign file": {".unitask", []string{".unitask/", ".unitask/images/", ".unitask/.DS_Store"}, "",
			".unitask .unitask/.DS_Store"},
	} {
		t.Chdir(t.TempDir())
		for _, entry := range row.entries {
			var err error
			if link, target, ok := strings.Cut(entry, ">"); ok {
				err = os.Symlink(target, link)
			} else if strings.HasSuffix(entry, "/") {
				err = os.Mkdir(entry, 0o700)
			} else {
				err = os.WriteFile(entry, nil, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		err := removeHome(row.home, false)
		if (err != nil) != (row.says != "") || err != nil && !strings.Contains(err.Error(), row.says) {
			t.Errorf("%s: %v", name, err)
		}
		var left []string
		_ = filepath.WalkDir(".", func(at string, _ fs.DirEntry, err error) error {
			left = append(left, at)
			return err
		})
		attack.Check(t, "unitask uninstall --yes with "+name, row.left, strings.Join(left[1:], " "))
	}
}

// removeHome removes what can be made again from a home, or all that is unitask's.
func removeHome(home string, all bool) error {
	list, err := entriesOf(home)
	if err == nil {
		err = onlyOurs(home, list)
	}
	if err == nil {
		err = removeListed(home, list, all)
	}
	return err
}
