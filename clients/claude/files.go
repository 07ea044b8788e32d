package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
)

const (
	maxFile   = 256 << 10 // bytes of a file, or of lines of one, in one answer
	maxEdit   = 8 << 20   // bytes of a file that edit changes
	maxLines  = 256 << 20 // bytes before the end of the lines that read shows
	blockSize = 1 << 20   // bytes that are read at once
)

// size returns the size of a regular file, and whether it exists.
func (m *machine) size(ctx context.Context, name string) (int64, error) {
	var about struct {
		IsFile bool
		Size   int64
	}
	if err := m.call(ctx, "fs/getMetadata", map[string]any{"path": fileURI(name)}, &about); err != nil {
		return 0, err
	}
	if !about.IsFile {
		return 0, fmt.Errorf("%s is no regular file", name)
	}
	return about.Size, nil
}

func readFile(ctx context.Context, m *machine, input json.RawMessage) (string, error) {
	var in struct {
		FilePath  string  `json:"file_path"`
		ViewRange []int64 `json:"view_range"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return "", err
	}
	name, err := m.at(in.FilePath)
	if err != nil {
		return "", err
	}
	size, err := m.size(ctx, name)
	switch {
	case err != nil:
		return "", err
	case len(in.ViewRange) == 2:
		return m.lines(ctx, name, in.ViewRange[0], in.ViewRange[1])
	case len(in.ViewRange) != 0:
		return "", errors.New("view_range must be [first line, last line]")
	case size > maxFile:
		return "", fmt.Errorf("%s has %d bytes, and one call shows %d: name lines with view_range", name, size, maxFile)
	}
	text, err := m.whole(ctx, name, maxFile)
	return string(text), err
}

// whole returns a file's bytes.
func (m *machine) whole(ctx context.Context, name string, limit int64) ([]byte, error) {
	var got struct{ DataBase64 []byte }
	err := m.call(ctx, "fs/readFile", map[string]any{"path": fileURI(name)}, &got)
	if err == nil && int64(len(got.DataBase64)) > limit {
		err = fmt.Errorf("%s has over %d bytes", name, limit)
	}
	return got.DataBase64, err
}

// lines returns the lines first to last of a file, counted from 1; last < 1 means the file's end.
func (m *machine) lines(ctx context.Context, name string, first, last int64) (string, error) {
	const handle = "lines"
	if err := m.call(ctx, "fs/open", map[string]any{"handleId": handle, "path": fileURI(name)}, nil); err != nil {
		return "", err
	}
	defer func() { _ = m.call(context.WithoutCancel(ctx), "fs/close", map[string]any{"handleId": handle}, nil) }()
	var text []byte
	line := int64(1)
	for at := int64(0); at < maxLines; at += blockSize {
		var got struct {
			Chunk []byte
			EOF   bool
		}
		err := m.call(ctx, "fs/readBlock", map[string]any{"handleId": handle, "offset": at, "len": blockSize}, &got)
		if err != nil {
			return "", err
		}
		for part := range bytes.Lines(got.Chunk) {
			if line >= first && (last < 1 || line <= last) {
				text = append(text, part...)
			}
			if part[len(part)-1] == '\n' {
				line++
			}
		}
		if len(text) > maxFile {
			return "", fmt.Errorf("the lines have over %d bytes: name fewer", maxFile)
		}
		if got.EOF || last >= 1 && line > last {
			return strings.TrimSuffix(string(text), "\n"), nil
		}
	}
	return "", fmt.Errorf("the lines are not in the first %d bytes: use the tool bash", maxLines)
}

func writeFile(ctx context.Context, m *machine, input json.RawMessage) (string, error) {
	var in struct {
		FilePath string  `json:"file_path"`
		Content  *string `json:"content"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return "", err
	}
	name, err := m.at(in.FilePath)
	if err == nil && in.Content == nil {
		err = errors.New("content is missing")
	}
	if err == nil {
		err = m.call(ctx, "fs/createDirectory", map[string]any{"path": fileURI(path.Dir(name)), "recursive": true}, nil)
	}
	if err == nil {
		err = m.put(ctx, name, []byte(*in.Content))
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("wrote %d bytes to %s", len(*in.Content), name), nil
}

func (m *machine) put(ctx context.Context, name string, data []byte) error {
	return m.call(ctx, "fs/writeFile", map[string]any{"path": fileURI(name), "dataBase64": data}, nil)
}

func editFile(ctx context.Context, m *machine, input json.RawMessage) (string, error) {
	var in struct {
		FilePath   string `json:"file_path"`
		OldString  string `json:"old_string"`
		NewString  string `json:"new_string"`
		ReplaceAll bool   `json:"replace_all"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return "", err
	}
	name, err := m.at(in.FilePath)
	if err == nil && in.OldString == "" {
		err = errors.New("old_string is missing")
	}
	if err != nil {
		return "", err
	}
	switch size, err := m.size(ctx, name); {
	case err != nil:
		return "", err
	case size > maxEdit:
		return "", fmt.Errorf("%s has %d bytes, and edit takes %d: use the tool bash", name, size, maxEdit)
	}
	text, err := m.whole(ctx, name, maxEdit)
	if err != nil {
		return "", err
	}
	found := bytes.Count(text, []byte(in.OldString))
	switch {
	case found == 0:
		return "", fmt.Errorf("%s does not have old_string", name)
	case found > 1 && !in.ReplaceAll:
		return "", fmt.Errorf("%s has old_string %d times: name more of the text, or set replace_all", name, found)
	case len(text)+found*(len(in.NewString)-len(in.OldString)) > maxEdit:
		return "", fmt.Errorf("%s would have over %d bytes", name, maxEdit)
	}
	text = bytes.ReplaceAll(text, []byte(in.OldString), []byte(in.NewString))
	if err := m.put(ctx, name, text); err != nil {
		return "", err
	}
	return fmt.Sprintf("edited %s: %d of old_string replaced", name, found), nil
}
