package hostfiles

import (
	"io/fs"
	"os"
)

// Inspecting tens of thousands of files takes as long as starting a machine, and nearly all of that time is the
// kernel's answers. So while one folder is processed, its siblings are opened and listed, in the same order.

// listAtOnce is the number of entries of a folder that are listed at a time.
const listAtOnce = 1024

// listing is an open folder with its first entries.
type listing struct {
	root *os.Root // nil if it can't be opened: err explains why
	dir  *os.File
	list []fs.DirEntry // the first entries
	err  error         // the error after them, often io.EOF
}

// list opens a folder in another one, and begins to list it.
func list(in *os.Root, name string) (l listing) {
	if l.root, l.err = in.OpenRoot(name); l.err != nil {
		return l
	}
	if l.dir, l.err = l.root.Open("."); l.err != nil {
		l.root.Close()
		l.root = nil
		return l
	}
	l.list, l.err = l.dir.ReadDir(listAtOnce)
	return l
}

func (l listing) close() {
	if l.root != nil {
		l.dir.Close()
		l.root.Close()
	}
}

// ahead lists folders before they are requested: it prepares one while another is processed.
type ahead struct {
	in    *os.Root
	ready chan chan listing // nil if there is nothing to do meanwhile
	stop  chan struct{}
}

func listAhead(in *os.Root, names []string) *ahead {
	a := &ahead{in: in}
	if len(names) < 2 {
		return a
	}
	a.ready, a.stop = make(chan chan listing, 1), make(chan struct{})
	go func() {
		defer close(a.ready)
		for _, name := range names {
			one := make(chan listing, 1)
			select {
			case a.ready <- one:
				go func() { one <- list(in, name) }()
			case <-a.stop:
				return
			}
		}
	}()
	return a
}

// next returns the next folder, which has that name. The caller closes it.
func (a *ahead) next(name string) listing {
	if a.ready == nil {
		return list(a.in, name)
	}
	return <-<-a.ready
}

// close ends the listing, and waits until nothing is open any more.
func (a *ahead) close() {
	if a.ready == nil {
		return
	}
	close(a.stop)
	for one := range a.ready {
		(<-one).close()
	}
}
