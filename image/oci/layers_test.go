package oci

import (
	"archive/tar"
	"slices"
	"strings"
	"testing"
)

var longTarget = strings.Repeat("n", 200)

var layersRows = []struct {
	name   string
	layers [][]item
	want   []string
}{{
	name:   "files and folders",
	layers: [][]item{{dir("a/"), text("a/b", "B"), text("./c", "C"), text("/d/e/f", "F")}},
	want:   []string{"a/", "a/b B", "c C", "d/", "d/e/", "d/e/f F"},
},
	{"the last one counts", [][]item{{text("a", "1"), text("a", "2")}, {text("a", "3")}}, []string{"a 3"}},
	{"a file in a folder's place", [][]item{{dir("a"), text("a/b", "")}, {text("a", "file")}}, []string{"a file"}},
	{"a folder in a file's place", [][]item{{text("a", "file")}, {dir("a"), text("a/b", "B")}}, []string{"a/", "a/b B"}},
	{"a folder again keeps what is in it", [][]item{{dir("a"), text("a/b", "B")}, {dir("a")}}, []string{"a/", "a/b B"}},
	{"white-out of a file", [][]item{{text("a", ""), text("b", "B")}, {text(".wh.a", "")}}, []string{"b B"}},
	{
		name:   "white-out of a folder",
		layers: [][]item{{dir("d"), text("d/a", ""), text("b", "B")}, {text(".wh.d", "")}},
		want:   []string{"b B"},
	},
	{
		name:   "white-out spares its own layer",
		layers: [][]item{{dir("d"), text("d/a", "old")}, {text("d/new", "N"), text(".wh.d", "")}},
		want:   []string{"d/", "d/new N"},
	},
	{
		name:   "white-out before its successor",
		layers: [][]item{{text("d", "old")}, {text(".wh.d", ""), text("d", "new")}},
		want:   []string{"d new"},
	},
	{
		name:   "white-out of nothing",
		layers: [][]item{{text("a", "A")}, {text(".wh.b", ""), text("x/y/.wh.z", ""), text("a/.wh.q", "")}},
		want:   []string{"a A"},
	},
	{
		name: "opaque, first",
		layers: [][]item{{dir("d"), text("d/a", ""), dir("d/e"), text("d/e/f", "")},
			{dir("d"), text("d/.wh..wh..opq", ""), text("d/b", "B")}},
		want: []string{"d/", "d/b B"},
	},
	{
		name: "opaque, last",
		layers: [][]item{{dir("d"), text("d/a", ""), dir("d/e"), text("d/e/f", "")},
			{text("d/b", "B"), text("d/e/g", "G"), text("d/.wh..wh..opq", "")}},
		want: []string{"d/", "d/b B", "d/e/", "d/e/g G"},
	},
	{"opaque at the root", [][]item{{text("a", "")}, {text(".wh..wh..opq", ""), text("b", "B")}}, []string{"b B"}},
	{"AUFS's own", [][]item{{text(".wh..wh.plnk", ""), text(".wh..wh.aufs", ""), text("a", "A")}}, []string{"a A"}},
	{
		name:   "hard links",
		layers: [][]item{{text("a", "A"), hardlink("b", "a"), hardlink("d/c", "./b")}},
		want:   []string{"a A", "b A", "d/", "d/c A"},
	},
	{
		name:   "a link's first name is taken away",
		layers: [][]item{{text("a", "A"), hardlink("b", "/a")}, {text(".wh.a", "")}},
		want:   []string{"b A"},
	},
	{"and replaced", [][]item{{text("a", "A"), hardlink("b", "a")}, {text("a", "new")}}, []string{"a new", "b A"}},
	{"a file gets another name", [][]item{{text("a", "A")}, {hardlink("b", "a"), text(".wh.a", "")}}, []string{"b A"}},
	{"a link to itself", [][]item{{text("a", "A"), hardlink("a", "a")}}, []string{"a A"}},
	{"a hard link to a link", [][]item{{symlink("a", "x"), hardlink("b", "a")}}, []string{"a -> x", "b -> x"}},
	{
		name:   "links stay as they are",
		layers: [][]item{{symlink("a", "/etc/passwd"), symlink("b", "../../../x"), symlink("c", longTarget)}},
		want:   []string{"a -> /etc/passwd", "b -> ../../../x", "c -> " + longTarget},
	},
	{
		name:   "through a link",
		layers: [][]item{{dir("usr/lib"), symlink("lib", "usr/lib")}, {text("lib/a", "A")}},
		want:   []string{"lib -> usr/lib", "usr/", "usr/lib/", "usr/lib/a A"},
	},
	{
		name: "through a link out",
		layers: [][]item{{symlink("up", "../../../../etc"), symlink("abs", "/tmp/x")},
			{text("up/a", "A"), text("abs/b", "B")}},
		want: []string{"abs -> /tmp/x", "etc/", "etc/a A", "tmp/", "tmp/x/", "tmp/x/b B", "up -> ../../../../etc"},
	},
	{
		name:   "white-out through a link",
		layers: [][]item{{dir("d"), text("d/a", ""), symlink("l", "d")}, {text("l/.wh.a", "")}},
		want:   []string{"d/", "l -> d"},
	},
	{
		name: "devices are left out",
		layers: [][]item{{{name: "null", kind: tar.TypeChar}, {name: "sda", kind: tar.TypeBlock},
			{name: "pipe", kind: tar.TypeFifo}, text("a", "A")}},
		want: []string{"a A"},
	},
	{"the root itself", [][]item{{{name: "./", kind: tar.TypeDir, mode: 0o700}, text("a", "A")}}, []string{"a A"}},
	{"none", [][]item{}, nil},
}

// The result of layers, by the rules of the image specification.
func TestLayers(t *testing.T) {
	for _, tt := range layersRows {
		t.Run(tt.name, func(t *testing.T) {
			var layers [][]byte
			for _, items := range tt.layers {
				layers = append(layers, tarOf(t, items...))
			}
			f, stats, err := written(t, imageOf(layers...), DefaultLimits)
			if err != nil {
				t.Fatal(err)
			}
			if got := files(t, f, stats); !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}
