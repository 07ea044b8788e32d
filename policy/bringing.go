package policy

import "maps"

// Bringing is the ceiling for a run whose files and folders came along from another host, into a
// folder of this one, "" for none: of this host's files it admits those and no others, whatever the
// ceiling says of the host's own.
func (c *Ceiling) Bringing(folder string) *Ceiling {
	if c == nil {
		return nil
	}
	own := *c
	own.most = maps.Clone(c.most)
	for i := range Fields {
		f := &Fields[i]
		if _, is := f.kind.(mounts); !is {
			continue
		}
		if _, there := own.most[f.ceiling()]; there {
			own.most[f.ceiling()] = []string{}
			if folder != "" {
				own.most[f.ceiling()] = []string{folder}
			}
		}
	}
	own.over = c.over.Bringing(folder)
	return &own
}
