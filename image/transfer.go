package image

import (
	"io/fs"
	"path/filepath"
	"time"
)

// transferTick is the time between two reports of a transfer.
const transferTick = 250 * time.Millisecond

// follow reports how many of total bytes of a transfer have arrived, until stop is called. tell may be nil.
func follow(tell func(done, total int64), total int64, have func() int64) (stop func()) {
	if tell == nil || total <= 0 {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(transferTick)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
				tell(min(have(), total), total)
			}
		}
	}()
	return func() {
		close(end)
		<-ended
	}
}

// bytesIn returns the bytes of the files below a folder into which a program downloads.
func bytesIn(dir string) (bytes int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // a file that has just got its name
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			bytes += info.Size()
		}
		return nil
	})
	return bytes
}
