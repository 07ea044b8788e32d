package imagefile

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"sync"
)

// shipped has the descriptions of images with further languages, each built on first use. To add one, add a file.
//
//go:embed languages/*.toml
var shipped embed.FS

// Languages returns the shipped images with further languages, by their names. They have no File. Callers don't change
// them.
var Languages = sync.OnceValue(readLanguages)

func readLanguages() (list []*Environment) {
	files, _ := fs.Glob(shipped, "languages/*"+Extension) // which can't fail
	for _, file := range files {
		e := &Environment{Name: strings.TrimSuffix(path.Base(file), Extension), Env: map[string]string{}}
		t, err := parse([]byte(e.ShippedText()))
		if err == nil {
			e.From, e.Chain = t.From, []string{file}
			if err = e.add(t, ""); err == nil {
				err = e.check()
			}
		}
		if err != nil || e.Language == nil {
			panic(fmt.Sprintf("%s: %v", file, err)) // a test reads all of them
		}
		list = append(list, e)
	}
	return list
}

// ShippedText returns the text of a shipped image's description, "" for other images.
func (e *Environment) ShippedText() string {
	text, _ := shipped.ReadFile("languages/" + e.Name + Extension)
	return string(text)
}
