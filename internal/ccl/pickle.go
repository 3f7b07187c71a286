package ccl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// The opcodes of pickles that torch::jit::Pickler writes for what Flight Recorder dumps (pytorch/pytorch,
// torch/csrc/jit/serialization/pickler.cpp, read on 2026-11-27; protocol 2), and the two by which Python's own pickle
// writes containers of one element. None of them can run code: GLOBAL, REDUCE, BUILD and all others are refused.
const (
	opMark       = '('
	opStop       = '.'
	opBinFloat   = 'G'
	opBinInt     = 'J'
	opBinInt1    = 'K'
	opBinInt2    = 'M'
	opNone       = 'N'
	opBinUnicode = 'X'
	opAppend     = 'a'
	opAppends    = 'e'
	opBinGet     = 'h'
	opLongBinGet = 'j'
	opBinPut     = 'q'
	opLongBinPut = 'r'
	opSetItem    = 's'
	opTuple      = 't'
	opSetItems   = 'u'
	opEmptyDict  = '}'
	opEmptyList  = ']'
	opEmptyTuple = ')'
	opProto      = 0x80
	opTuple1     = 0x85
	opTuple2     = 0x86
	opTuple3     = 0x87
	opNewTrue    = 0x88
	opNewFalse   = 0x89
	opLong1      = 0x8a
)

// Bounds of the memory that a dump can take. A dump of 18,000 operations with their stacks has 1.4 million values.
const (
	maxPickleValues = 3 << 19
	maxPickleText   = 32 << 20 // bytes of all strings
)

// pickleList is a list or a tuple.
type pickleList struct {
	items []any
	depth int
}

// pickleDict is a dictionary whose keys are strings, in the order in which they were set.
type pickleDict struct {
	items []pickleItem
	depth int
}

type pickleItem struct {
	key   string
	value any
}

// unpickler is the stack machine that a pickle is a program of. Values are nil, bool, int64, float64, string, *pickleList
// and *pickleDict. Nothing is called, imported or built.
type unpickler struct {
	b      []byte
	i      int
	stack  []any
	marks  []int // heights of the stack
	memo   []any
	values int
	text   int // bytes of all strings
}

// readPickle returns the value of a pickle.
func readPickle(b []byte) (any, error) {
	u := unpickler{b: b}
	for {
		at := u.i
		done, err := u.step()
		if err != nil {
			return nil, fmt.Errorf("byte %d of the pickle: %w", at, err)
		}
		if done {
			return u.stack[0], nil
		}
	}
}

// step executes one opcode. It is true after the last one.
func (u *unpickler) step() (done bool, err error) {
	op, err := u.take(1)
	if err != nil {
		return false, err
	}
	switch op[0] {
	case opProto:
		v, err := u.take(1)
		if err == nil && v[0] > 5 {
			err = fmt.Errorf("protocol %d is unknown", v[0])
		}
		return false, err
	case opStop:
		if len(u.stack) != 1 || len(u.marks) != 0 {
			return false, fmt.Errorf("%d values where one is expected", len(u.stack))
		}
		return true, nil
	case opMark:
		if len(u.marks) == maxDepth {
			return false, fmt.Errorf("more than %d values are nested", maxDepth)
		}
		u.marks = append(u.marks, len(u.stack))
		return false, nil
	case opBinGet, opLongBinGet, opBinPut, opLongBinPut:
		return false, u.memoize(op[0])
	case opAppend, opAppends, opSetItem, opSetItems:
		return false, u.fill(op[0])
	case opTuple, opEmptyTuple, opTuple1, opTuple2, opTuple3:
		return false, u.tuple(op[0])
	case opEmptyDict:
		return false, u.push(&pickleDict{})
	case opEmptyList:
		return false, u.push(&pickleList{})
	}
	v, err := u.scalar(op[0])
	if err != nil {
		return false, err
	}
	return false, u.push(v)
}

// take returns the next n bytes.
func (u *unpickler) take(n int) ([]byte, error) {
	if n > len(u.b)-u.i {
		return nil, errors.New("the pickle ends early")
	}
	u.i += n
	return u.b[u.i-n : u.i], nil
}

// push puts a value on the stack.
func (u *unpickler) push(v any) error {
	if u.values++; u.values > maxPickleValues {
		return fmt.Errorf("more than %d values", maxPickleValues)
	}
	u.stack = append(u.stack, v)
	return nil
}

// pop takes the values above a height off the stack. They are valid until the next push.
func (u *unpickler) pop(height int) ([]any, error) {
	lowest := 0
	if len(u.marks) > 0 {
		lowest = u.marks[len(u.marks)-1]
	}
	if height < lowest {
		return nil, errors.New("a value is missing")
	}
	top := u.stack[height:]
	u.stack = u.stack[:height]
	return top, nil
}

// popMark takes the values above the last mark, and the mark.
func (u *unpickler) popMark() ([]any, error) {
	if len(u.marks) == 0 {
		return nil, errors.New("a mark is missing")
	}
	height := u.marks[len(u.marks)-1]
	u.marks = u.marks[:len(u.marks)-1]
	return u.pop(height)
}

// scalar reads a value without parts.
func (u *unpickler) scalar(op byte) (any, error) {
	switch op {
	case opNone:
		return nil, nil
	case opNewTrue, opNewFalse:
		return op == opNewTrue, nil
	case opBinInt1:
		return u.integer(1, false)
	case opBinInt2:
		return u.integer(2, false)
	case opBinInt:
		return u.integer(4, true)
	case opLong1:
		n, err := u.take(1)
		if err != nil {
			return nil, err
		}
		if n[0] > 8 {
			return nil, fmt.Errorf("a number of %d bytes", n[0])
		}
		return u.integer(int(n[0]), true)
	case opBinFloat:
		b, err := u.take(8)
		if err != nil {
			return nil, err
		}
		return math.Float64frombits(binary.BigEndian.Uint64(b)), nil
	case opBinUnicode:
		n, err := u.integer(4, false)
		if err != nil {
			return nil, err
		}
		b, err := u.take(int(n))
		if u.text += len(b); u.text > maxPickleText {
			return nil, fmt.Errorf("more than %d bytes of text", maxPickleText)
		}
		if err == nil && !utf8.Valid(b) {
			err = errors.New("a string is not UTF-8")
		}
		return string(b), err
	}
	return nil, fmt.Errorf("opcode %#02x is refused: Flight Recorder does not write it", op)
}

// integer reads a little-endian number of at most 8 bytes.
func (u *unpickler) integer(size int, signed bool) (int64, error) {
	b, err := u.take(size)
	if err != nil {
		return 0, err
	}
	var n uint64
	for i, c := range b {
		n |= uint64(c) << (8 * i)
	}
	if signed && size > 0 {
		shift := 64 - 8*size
		return int64(n<<shift) >> shift, nil
	}
	return int64(n), nil
}

// memoize stores the top of the stack under a number, or pushes the value that was stored.
func (u *unpickler) memoize(op byte) error {
	size := 1
	if op == opLongBinGet || op == opLongBinPut {
		size = 4
	}
	n, err := u.integer(size, false)
	if err != nil {
		return err
	}
	if op == opBinGet || op == opLongBinGet {
		if n >= int64(len(u.memo)) {
			return fmt.Errorf("value %d was not stored before", n)
		}
		return u.push(u.memo[n])
	}
	if len(u.stack) == 0 {
		return errors.New("no value to store")
	}
	// Both writers number the stored values from 0 on.
	if n > int64(len(u.memo)) {
		return fmt.Errorf("value %d is stored where %d is expected", n, len(u.memo))
	}
	top := u.stack[len(u.stack)-1]
	if n == int64(len(u.memo)) {
		u.memo = append(u.memo, top)
	}
	u.memo[n] = top
	return nil
}

// tuple makes a tuple of the values above the mark, or of the last ones.
func (u *unpickler) tuple(op byte) error {
	var items []any
	var err error
	switch op {
	case opTuple:
		items, err = u.popMark()
	case opTuple1, opTuple2, opTuple3:
		items, err = u.pop(len(u.stack) - int(op-opTuple1) - 1)
	}
	if err != nil {
		return err
	}
	list := &pickleList{items: append([]any(nil), items...)}
	if err := deepen(&list.depth, items); err != nil {
		return err
	}
	return u.push(list)
}

// deepen makes the depth of a container greater than that of its items.
func deepen(depth *int, items []any) error {
	for _, v := range items {
		switch v := v.(type) {
		case *pickleList:
			*depth = max(*depth, v.depth+1)
		case *pickleDict:
			*depth = max(*depth, v.depth+1)
		}
	}
	if *depth >= maxDepth {
		return fmt.Errorf("more than %d values are nested", maxDepth)
	}
	return nil
}

// fill puts the values above the mark, or the last ones, into the list or dictionary below them.
func (u *unpickler) fill(op byte) error {
	var items []any
	var err error
	switch op {
	case opAppend:
		items, err = u.pop(len(u.stack) - 1)
	case opSetItem:
		items, err = u.pop(len(u.stack) - 2)
	default:
		items, err = u.popMark()
	}
	if err != nil {
		return err
	}
	if len(u.stack) == 0 {
		return errors.New("a list or dictionary is missing")
	}
	switch into := u.stack[len(u.stack)-1].(type) {
	case *pickleList:
		if op == opAppend || op == opAppends {
			into.items = append(into.items, items...)
			return deepen(&into.depth, items)
		}
	case *pickleDict:
		if op == opSetItem || op == opSetItems {
			return into.set(items)
		}
	}
	return errors.New("a list or dictionary is missing")
}

// set sets keys to the values behind them.
func (d *pickleDict) set(items []any) error {
	if len(items)%2 != 0 {
		return errors.New("a key without a value")
	}
	for i := 0; i < len(items); i += 2 {
		key, ok := items[i].(string)
		if !ok {
			return errors.New("a key is no string")
		}
		d.items = append(d.items, pickleItem{key, items[i+1]})
	}
	return deepen(&d.depth, items)
}
