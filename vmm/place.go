package vmm

import (
	"errors"
	"fmt"
)

// memoryBlock is QEMU's name for a machine's memory.
const memoryBlock = "mem"

// Place returns a device state from which a machine starts with content in its memory: at these offsets of
// Config.Memory, a page each. The memory's file is not changed: a clone has its own pages.
func Place(state []byte, offsets []int64, content []byte) ([]byte, error) {
	memory, err := readMemory(state)
	if err != nil {
		return nil, fmt.Errorf("place: %w", err)
	}
	pages := (len(content) + guestPage - 1) / guestPage
	if pages > len(offsets) {
		return nil, fmt.Errorf("place: %d bytes find no room in %d pages", len(content), len(offsets))
	}
	for _, at := range offsets {
		if at < 0 || at%guestPage != 0 {
			return nil, errors.New("place: an offset is no page's")
		}
	}
	if pages == 0 {
		return state, nil
	}
	placed := make([]byte, 0, len(state)+pages*(guestPage+16)+64)
	placed = appendPages(append(placed, state[:memory.end]...), memory.number, memoryBlock, content,
		func(page int) int64 { return offsets[page] })
	return append(placed, state[memory.end:]...), nil
}
