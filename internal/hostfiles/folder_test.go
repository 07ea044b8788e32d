package hostfiles

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/unitask/unitask/internal/attack"
)

func tarOf(t *testing.T, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		text := h.Uname // the content
		h.Uname = ""
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(text))
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := io.WriteString(w, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func reg(name, text string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Uname: text}
}
func dir(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o700} }
func link(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}
}
func same(name, to string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to}
}

// take makes TakeFolder create "got" in a folder with targets next to it, and returns what exists afterwards.
func take(t *testing.T, text []byte) (got string, err error) {
	t.Helper()
	outer := t.TempDir()
	top := filepath.Join(outer, "top")
	if err := errors.Join(os.Mkdir(top, 0o755), os.WriteFile(filepath.Join(outer, "victim"), []byte("v"),
		0o644)); err != nil {
		t.Fatal(err)
	}
	got = filepath.Join(top, "got")
	_, err = TakeFolder(got, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
	if list, _ := os.ReadDir(outer); len(list) != 2 {
		t.Errorf("beside it: %v", list)
	}
	if v, _ := os.ReadFile(filepath.Join(outer, "victim")); string(v) != "v" {
		t.Errorf("the file outside: %q", v)
	}
	if list, _ := os.ReadDir(top); err == nil && (len(list) != 1 || list[0].Name() != "got") ||
		err != nil && len(list) > 0 {
		t.Errorf("%v: left: %v", err, list)
	}
	return got, err
}

type hostileFoldersRow struct {
	text []byte
	want string
}

// hostileFoldersRows are the cases of TestHostileFolders.
func hostileFoldersRows(
	t *testing.T, many []tar.Header, deep string, sized func(size int64) []byte, whole []byte,
	sparse func(size int64) []byte,
) map[string]hostileFoldersRow {
	return map[string]hostileFoldersRow{
		"an absolute name":          {tarOf(t, reg("/etc/x", "")), "leads out"},
		"a name upwards":            {tarOf(t, reg("../victim", "w")), "leads out"},
		"a name upwards within":     {tarOf(t, dir("a/"), reg("a/../../victim", "w")), "leads out"},
		"a folder upwards":          {tarOf(t, dir("..")), "leads out"},
		"a link out":                {tarOf(t, link("l", "/etc/passwd")), "out of the folder"},
		"a link upwards":            {tarOf(t, link("l", "../victim")), "out of the folder"},
		"a link upwards from below": {tarOf(t, dir("a/"), link("a/l", "../../victim")), "out of the folder"},
		"a link up and down and up": {tarOf(t, dir("a/"), dir("a/b/"), link("a/b/up", "../.."),
			link("l", "a/b/up/../victim")), "out of the folder"},
		"a link to nothing": {tarOf(t, reg("a", ""), link("l", strings.Repeat("a", 5000))),
			"out of the folder"},
		"a file through a link":            {tarOf(t, link("l", "."), reg("l/x", "")), "no folder of the archive"},
		"a folder through a link":          {tarOf(t, dir("a/"), link("l", "a"), dir("l/x/")), "no folder of the archive"},
		"a file in a file":                 {tarOf(t, reg("a", ""), reg("a/b", "")), "no folder of the archive"},
		"a file in the place of a link":    {tarOf(t, link("l", "x"), reg("l", "w")), "twice"},
		"a link in the place of a folder":  {tarOf(t, dir("d/"), link("d", ".")), "twice"},
		"a file twice":                     {tarOf(t, reg("a", "1"), reg("a", "2")), "twice"},
		"another name of a file outside":   {tarOf(t, same("l", "../victim")), "no file of the archive"},
		"another name of an absolute file": {tarOf(t, same("l", "/etc/passwd")), "no file of the archive"},
		"another name of a link":           {tarOf(t, link("s", "x"), same("l", "s")), "no file of the archive"},
		"a device":                         {tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeBlock}), "a device"},
		"a character device":               {tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeChar}), "a device"},
		"a pipe":                           {tarOf(t, tar.Header{Name: "d", Typeflag: tar.TypeFifo}), "a pipe"},
		"too many":                         {tarOf(t, many...), "one entry more"},
		"too deep":                         {tarOf(t, dir(deep)), "deeper"},
		"a long name":                      {tarOf(t, reg(strings.Repeat("a", 5000), "")), "deeper"},
		"too large":                        {sized(1<<33 - 1), "more than the 1073741824 bytes"},
		"larger than what comes":           {sized(1 << 20), "unexpected EOF"},
		"no archive":                       {[]byte(strings.Repeat("no archive ", 100)), "not one"},
		"a cut header":                     {whole[:100], "not one"},
		"a cut file":                       {whole[:2000], "unexpected EOF"},
		"a sparse file":                    {sparse(1 << 40), "more than the 1073741824 bytes"},
		"a sparse file beyond all":         {sparse(1<<62 + 1), "more than the 1073741824 bytes"},
	}
}

// Archives that a machine's code has written: none creates anything outside, and none leaves an incomplete folder.
func TestHostileFolders(t *testing.T) {
	sum := func(text []byte) []byte { // with a changed header
		n := 0
		copy(text[148:156], "        ")
		for _, b := range text[:512] {
			n += int(b)
		}
		copy(text[148:156], fmt.Sprintf("%06o\x00 ", n))
		return text
	}
	sized := func(size int64) []byte { // with a larger size than its content
		text := tarOf(t, reg("a", ""))
		copy(text[124:136], fmt.Sprintf("%011o\x00", size))
		return sum(text)
	}
	sparse := func(size int64) []byte { // a file without content
		records := ""
		for _, r := range []string{"GNU.sparse.major=1", "GNU.sparse.minor=0", "GNU.sparse.name=big",
			fmt.Sprint("GNU.sparse.realsize=", size)} {
			records += fmt.Sprintf("%d %s\n", len(r)+4, r)
		}
		head := tarOf(t, reg("x", records))
		head[156] = 'x'
		return append(sum(head)[:1024], tarOf(t, reg("GNUSparseFile.0/big", "0\n"+strings.Repeat("\x00", 510)))...)
	}
	many := make([]tar.Header, MaxFolderEntries+1)
	for i := range many {
		many[i] = dir("d/")
	}
	deep := strings.Repeat("a/", maxFolderDepth+1)
	whole := tarOf(t, reg("a", strings.Repeat("x", 5000)))
	for name, row := range hostileFoldersRows(t, many, deep, sized, whole, sparse) {
		if got, err := take(t, row.text); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v %v, want %s", name, got, err, row.want)
		}
	}
	// Two halves of the limit and one more byte are too much.
	u := counted{}
	if err := errors.Join(u.add("a", MaxFolderBytes/2), u.add("b", MaxFolderBytes/2)); err != nil || u.add("c", 1) == nil {
		t.Error(err)
	}
	// A failed transfer leaves nothing, and says why.
	broken := errors.New("broken")
	if _, err := TakeFolder(filepath.Join(t.TempDir(), "got"),
		func(w io.Writer) error { _, _ = w.Write(whole[:1000]); return broken }); !errors.Is(err, broken) {
		t.Error(err)
	}
	taken := t.TempDir()
	if err := os.WriteFile(filepath.Join(taken, "x"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{taken, filepath.Join(taken, "x"), filepath.Join(taken, "no", "such")} {
		if _, err := TakeFolder(name, func(w io.Writer) error { _, err := w.Write(whole); return err }); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A folder arrives unchanged, with the links that lead into it.
func TestFolders(t *testing.T) {
	from := t.TempDir()
	for _, name := range []string{"a/b", "empty"} {
		if err := os.MkdirAll(filepath.Join(from, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(filepath.Join(from, "a/b/run"), []byte("#!"), 0o755),
		os.WriteFile(filepath.Join(from, "größe"), bytes.Repeat([]byte("x"), 100_000), 0o600),
		os.Chmod(filepath.Join(from, "a/b/run"), 0o755), os.Symlink("../../größe", filepath.Join(from, "a/b/up")),
		os.Symlink("a/b", filepath.Join(from, "down"))); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "to")
	err := SendFolder(from, func(r io.Reader) error {
		_, err := takeFolder(to, true, func(w io.Writer) error { _, err := io.Copy(w, r); return err })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(to, FolderWhole)); err != nil {
		t.Error(err)
	}
	to = filepath.Join(to, FolderName)
	text, err := os.ReadFile(filepath.Join(to, "a/b/up"))
	st, err2 := os.Stat(filepath.Join(to, "down/run"))
	if err != nil || err2 != nil || len(text) != 100_000 || st.Mode().Perm() != 0o755 {
		t.Errorf("%d bytes, %v %v %v", len(text), st, err, err2)
	}
	if st, err := os.Stat(filepath.Join(to, "empty")); err != nil || !st.IsDir() {
		t.Errorf("%v %v", st, err)
	}
	// Entries that can't be sent, and an archive without its last entry.
	if err := syscall.Mkfifo(filepath.Join(from, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	var sent bytes.Buffer
	err = SendFolder(from, func(r io.Reader) error { _, err := io.Copy(&sent, r); return err })
	if !errors.As(err, new(*FolderError)) || !strings.Contains(err.Error(), `"pipe" is neither`) ||
		bytes.Contains(sent.Bytes(), []byte(FolderWhole)) {
		t.Error(err)
	}
	stop := errors.New("stop")
	if err := SendFolder(from, func(r io.Reader) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if err := SendFolder(filepath.Join(from, "none"), nil); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A folder that is passed on keeps its modes, whatever this process's umask is. A file that its owner may not read gets
// the owner's read bit, so that a user can pass it on.
func TestPassFolderModes(t *testing.T) { // the umask applies to the whole process, so this test is not parallel
	for _, mask := range []int{0o077, 0o027, 0} {
		before := syscall.Umask(mask)
		way := t.TempDir()
		got := ""
		err := PassFolder(way, func(w io.Writer) error {
			_, err := w.Write(tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o775},
				tar.Header{Name: "d/run", Typeflag: tar.TypeReg, Mode: 0o755},
				tar.Header{Name: "all", Typeflag: tar.TypeReg, Mode: 0o666},
				tar.Header{Name: "none", Typeflag: tar.TypeReg, Mode: 0o040},
				tar.Header{Name: "implied/file", Typeflag: tar.TypeReg, Mode: 0o444}))
			return err
		}, func(r io.Reader) error {
			for from := tar.NewReader(r); ; {
				h, err := from.Next()
				if err == io.EOF {
					return nil
				}
				if err != nil {
					return err
				}
				if _, rel, ok := strings.Cut(h.Name, "/"); ok && rel != "" {
					got += fmt.Sprintf("%s %03o\n", rel, h.Mode)
				}
			}
		})
		syscall.Umask(before)
		if want := "all 666\nd/ 775\nd/run 755\nimplied/ 755\nimplied/file 444\nnone 440\n"; err != nil || got != want {
			t.Errorf("under umask %03o: %v\n%s", mask, err, got)
		}
	}
}

// A folder that is passed on arrives unchanged, and nothing of it is left between the two machines. An invalid one does
// not arrive.
func TestPassFolder(t *testing.T) {
	way, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
	fill := func(list ...tar.Header) func(io.Writer) error {
		return func(w io.Writer) error {
			_, err := w.Write(tarOf(t, list...))
			return err
		}
	}
	if err := PassFolder(way, fill(dir("./"), dir("./a"), reg("./a/b", "text"), link("./c", "a/b")),
		func(r io.Reader) error {
			_, err := TakeFolder(target, func(w io.Writer) error {
				_, err := io.Copy(w, r)
				return err
			})
			return err
		}); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(target, FolderName, "c")); err != nil || string(text) != "text" {
		t.Errorf("%q, %v", text, err)
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		fill func(io.Writer) error
		use  error
	}{
		"a link that leads out": {fill(dir("./"), link("./a", "/etc/passwd")), nil},
		"one that is cut":       {func(io.Writer) error { return broken }, nil},
		"nobody takes it":       {fill(dir("./"), reg("./a", "text")), broken},
	} {
		used := false
		err := PassFolder(way, c.fill, func(r io.Reader) error {
			used = true
			return c.use
		})
		if err == nil || used != (c.use != nil) {
			t.Errorf("%s: %v, arrived %t", name, err, used)
		}
	}
	if list, err := os.ReadDir(way); err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// attackFolderOutRows are the cases of TestAttackFolderOut.
var attackFolderOutRows = []struct {
	name string
	list []tar.Header
	at   string
	want string // the existing file
	left string
}{
	{"a file", []tar.Header{reg("a", "text")}, "a", "text", ""},
	{"a program", []tar.Header{{Name: "run", Typeflag: tar.TypeReg, Mode: 0o4755, Uname: "text"}}, "run", "text", ""},
	{"git's configuration", []tar.Header{dir("repo/"), dir("repo/.git/"), reg("repo/.git/config", "fsmonitor"),
		reg("repo/a", "text")}, "repo/.git", "nothing", "repo/.git/config"},
	{"a hook", []tar.Header{{Name: ".git/hooks/post-commit", Typeflag: tar.TypeReg, Mode: 0o755}}, ".git", "nothing",
		".git/hooks/post-commit"},
	{"a ceiling", []tar.Header{reg(".unitask.toml", "x")}, ".unitask.toml", "nothing", ".unitask.toml"},
	{"servers of MCP", []tar.Header{reg("a/.mcp.json", "x")}, "a/.mcp.json", "nothing", "a/.mcp.json"},
	{"what direnv runs", []tar.Header{reg(".envrc", "x")}, ".envrc", "nothing", ".envrc"},
	{"another name of a hidden file", []tar.Header{reg(".envrc", "x"), same("plain", ".envrc")}, "plain", "nothing",
		"plain"},
	{"a hidden link", []tar.Header{dir("d/"), link(".git", "d")}, ".git", "nothing", ".git"},
	{"a link to git's configuration", []tar.Header{link("plain", "./.git/config")}, "plain", "nothing", "plain"},
	{"a link whose target is read from right to left", []tar.Header{link("plain", "a\u202eb")}, "plain", "nothing",
		"plain"},
	// like all links
	{
		name: "a link upwards",
		list: []tar.Header{reg("a", "text"), dir("d/"), link("d/plain", ".././a")},
		at:   "d/plain",
		want: "text, executable",
	},
	{"an option", []tar.Header{reg("-rf", "x")}, "-rf", "nothing", "-rf"},
	{"a name that is read from right to left", []tar.Header{reg("a\u202eb", "x")}, "a\u202eb", "nothing", "a\u202eb"},
	{"a name with a line's end", []tar.Header{reg("a\nb", "x")}, "a\nb", "nothing", "a\nb"},
}

// A folder from a machine follows the rules of everything that leaves one.
func TestAttackFolderOut(t *testing.T) {
	for _, row := range attackFolderOutRows {
		to := filepath.Join(t.TempDir(), "to")
		left, err := TakeFolder(to, func(w io.Writer) error { _, err := w.Write(tarOf(t, row.list...)); return err })
		if err != nil {
			t.Errorf("%s: %v", row.name, err)
			continue
		}
		got := "nothing"
		if st, err := os.Lstat(filepath.Join(to, row.at)); err == nil {
			text, _ := os.ReadFile(filepath.Join(to, row.at))
			if got = string(text); st.Mode().Perm()&0o111 != 0 {
				got += ", executable"
			}
		}
		said := ""
		for _, l := range left {
			said = l.Path // the last
		}
		attack.Check(t, "a folder out of a machine: "+row.name, row.want+", left out "+row.left, got+", left out "+said)
	}
	// Nobody else can read a folder of a user whose umask excludes others.
	old := syscall.Umask(0o077)
	to := filepath.Join(t.TempDir(), "to")
	_, err := TakeFolder(to, func(w io.Writer) error {
		_, err := w.Write(tarOf(t, tar.Header{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o777},
			tar.Header{Name: "f", Typeflag: tar.TypeReg, Mode: 0o666}))
		return err
	})
	syscall.Umask(old)
	modes := ""
	for _, name := range []string{"", "d", "f"} {
		st, e := os.Lstat(filepath.Join(to, name))
		if err = errors.Join(err, e); err == nil {
			modes += st.Mode().String() + " "
		}
	}
	attack.Check(t, "a folder out of a machine, under umask 077", "drwx------ drwx------ -rw------- ", fmt.Sprint(modes))
	if err != nil {
		t.Fatal(err)
	}
	// Folders that exist only in names count, too.
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	u := unpacking{root: root, count: counted{entries: MaxFolderEntries - 20}, dirs: map[string]bool{".": true},
		files: map[string]bool{}}
	err = u.unpack(bytes.NewReader(tarOf(t, reg(strings.Repeat("d/", 40)+"f", ""))))
	attack.Check(t, "a folder out of a machine: one file that makes 40 folders, where 20 may be", "true",
		fmt.Sprint(errors.As(err, new(*FolderError))))
}
