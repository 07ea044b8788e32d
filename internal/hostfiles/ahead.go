package hostfiles

import (
	"io/fs"
	"os"
)

// Looking at tens of thousands of files takes as long as a machine does to start, and nearly all
// of it is the kernel's answering what each is. So while a folder is worked off, those beside
// it are opened and listed, in the same order.

// listAtOnce is how many entries of a folder are listed at a time.
const listAtOnce = 1024

// listing is a folder that was opened and begun to be listed.
type listing struct {
	root *os.Root // nil where it can't be opened: err says why
	dir  *os.File
	list []fs.DirEntry // the first entries
	err  error         // that came with them, io.EOF among others
}

// list opens a folder that is in another, and begins to list it.
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

// ahead lists folders before they are asked for: one is waited for while another is listed.
type ahead struct {
	in    *os.Root
	ready chan chan listing // nil where there is nothing to do meanwhile
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

// close ends the listing; it waits until nothing is open any more.
func (a *ahead) close() {
	if a.ready == nil {
		return
	}
	close(a.stop)
	for one := range a.ready {
		(<-one).close()
	}
}
