package imagefile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
)

// shipped has the descriptions of images that are built on first use. They have further languages, or are templates
// that users of the E2B API expect. To add one, add a file.
//
//go:embed languages/*.toml templates/*.toml
var shipped embed.FS

// Shipped returns the shipped images, by their names. They have no File. Callers don't change them.
var Shipped = sync.OnceValue(readShipped)

// Languages returns the shipped images with further languages.
var Languages = sync.OnceValue(func() []*Environment {
	return slices.DeleteFunc(slices.Clone(Shipped()), func(e *Environment) bool { return e.Language == nil })
})

// FindShipped returns the shipped image of a name, or nil.
func FindShipped(name string) *Environment {
	at := slices.IndexFunc(Shipped(), func(e *Environment) bool { return e.Name == name })
	if at < 0 {
		return nil
	}
	return Shipped()[at]
}

func readShipped() (list []*Environment) {
	files, _ := fs.Glob(shipped, "*/*"+Extension) // which can't fail
	for _, file := range files {
		e := &Environment{Name: strings.TrimSuffix(path.Base(file), Extension), Env: map[string]string{}}
		text, err := shipped.ReadFile(file)
		e.shipped = string(text)
		t, errText := parse(text)
		err = errors.Join(err, errText)
		if err == nil {
			e.From, e.Chain = t.From, []string{file}
			if err = e.add(t, ""); err == nil {
				err = e.check()
			}
		}
		if err != nil || (e.Language == nil) != (path.Dir(file) == "templates") {
			panic(fmt.Sprintf("%s: %v", file, err)) // a test reads all of them
		}
		list = append(list, e)
	}
	return list
}

// ShippedText returns the text of a shipped image's description, "" for other images.
func (e *Environment) ShippedText() string { return e.shipped }
