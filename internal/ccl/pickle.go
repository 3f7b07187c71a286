package ccl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Opcodes of pickles that torch::jit::Pickler writes for plain values (pytorch/pytorch, torch/csrc/jit/serialization/pickler.h
// and pickler.cpp; protocol 2 of Python's pickletools). Those that name or call code (GLOBAL, REDUCE, BUILD and others) are
// none of them, and refused.
const (
	opMark        = '('
	opStop        = '.'
	opBinInt      = 'J'
	opBinInt1     = 'K'
	opBinInt2     = 'M'
	opNone        = 'N'
	opBinUnicode  = 'X'
	opAppend      = 'a'
	opAppends     = 'e'
	opBinGet      = 'h'
	opLongBinGet  = 'j'
	opEmptyList   = ']'
	opBinPut      = 'q'
	opLongBinPut  = 'r'
	opSetItem     = 's'
	opTuple       = 't'
	opSetItems    = 'u'
	opEmptyDict   = '}'
	opEmptyTuple  = ')'
	opBinFloat    = 'G'
	opProto       = 0x80
	opTuple1      = 0x85
	opTuple2      = 0x86
	opTuple3      = 0x87
	opNewTrue     = 0x88
	opNewFalse    = 0x89
	opLong1       = 0x8a
	pickleVersion = 2
)

// mark separates the values of a list, tuple or dictionary from those before them.
type mark struct{}

// pickle is the machine that a pickle is a program of.
type pickle struct {
	in    []byte
	at    int
	stack []any
	memo  map[uint32]any
	left  int // operations that may still be run
}

var errShort = errors.New("the file ends within a value")

// parsePickle reads a pickle of plain values.
func parsePickle(text []byte) (any, error) {
	p := &pickle{in: text, memo: map[uint32]any{}, left: 4 * maxValues}
	v, err := p.run()
	if err != nil {
		return nil, fmt.Errorf("byte %d of the pickle: %w", p.at, err)
	}
	return v, nil
}

// take returns the next bytes.
func (p *pickle) take(n int) ([]byte, error) {
	if n < 0 || n > len(p.in)-p.at {
		return nil, errShort
	}
	b := p.in[p.at : p.at+n]
	p.at += n
	return b, nil
}

// number reads an unsigned number, the lowest byte first.
func (p *pickle) number(bytes int) (uint64, error) {
	b, err := p.take(bytes)
	if err != nil {
		return 0, err
	}
	var all [8]byte
	copy(all[:], b)
	return binary.LittleEndian.Uint64(all[:]), nil
}

func (p *pickle) push(v any) error {
	if len(p.stack) >= maxValues {
		return errTooMany
	}
	p.stack = append(p.stack, v)
	return nil
}

// pop returns the last value.
func (p *pickle) pop() (any, error) {
	if len(p.stack) == 0 {
		return nil, errors.New("a value is expected on the stack")
	}
	v := p.stack[len(p.stack)-1]
	if _, is := v.(mark); is {
		return nil, errors.New("a value is expected, and not a mark")
	}
	p.stack = p.stack[:len(p.stack)-1]
	return v, nil
}

// popToMark returns the values since the last mark, and drops it. They are valid until the next push.
func (p *pickle) popToMark() ([]any, error) {
	for i := len(p.stack) - 1; i >= 0; i-- {
		if _, is := p.stack[i].(mark); is {
			out := p.stack[i+1:]
			p.stack = p.stack[:i]
			return out, nil
		}
	}
	return nil, errors.New("a mark is expected on the stack")
}

// run runs the program.
func (p *pickle) run() (any, error) {
	for {
		if p.left--; p.left < 0 {
			return nil, errTooMany
		}
		op, err := p.number(1)
		if err != nil {
			return nil, err
		}
		if op == opStop {
			return p.pop()
		}
		if done, err := p.scalar(byte(op)); err != nil {
			return nil, err
		} else if done {
			continue
		}
		if err := p.container(byte(op)); err != nil {
			return nil, err
		}
	}
}

// scalar runs an operation that pushes a value without parts, or that keeps or repeats one.
func (p *pickle) scalar(op byte) (done bool, err error) {
	var v any
	switch op {
	case opProto:
		n, err := p.number(1)
		if err == nil && n != pickleVersion {
			err = fmt.Errorf("protocol %d is expected, and not %d", pickleVersion, n)
		}
		return true, err
	case opNone:
	case opNewTrue, opNewFalse:
		v = op == opNewTrue
	case opBinInt:
		n, err := p.number(4)
		if err != nil {
			return true, err
		}
		v = int64(int32(uint32(n)))
	case opBinInt1, opBinInt2:
		n, err := p.number(map[byte]int{opBinInt1: 1, opBinInt2: 2}[op])
		if err != nil {
			return true, err
		}
		v = int64(n)
	case opLong1:
		if v, err = p.long(); err != nil {
			return true, err
		}
	case opBinFloat:
		b, err := p.take(8)
		if err != nil {
			return true, err
		}
		v = math.Float64frombits(binary.BigEndian.Uint64(b))
	case opBinUnicode:
		n, err := p.number(4)
		if err != nil {
			return true, err
		}
		b, err := p.take(int(n))
		if err != nil {
			return true, err
		}
		v = string(b)
	case opBinPut, opLongBinPut, opBinGet, opLongBinGet:
		return true, p.remember(op)
	default:
		return false, nil
	}
	return true, p.push(v)
}

// long reads a number of up to eight bytes.
func (p *pickle) long() (int64, error) {
	n, err := p.number(1)
	if err != nil {
		return 0, err
	}
	if n > 8 {
		return 0, fmt.Errorf("a number of %d bytes, and at most 8 are read", n)
	}
	if n == 0 {
		return 0, nil
	}
	v, err := p.number(int(n))
	shift := 64 - 8*n
	return int64(v<<shift) >> shift, err
}

// remember keeps the last value under a number, or pushes the value of one.
func (p *pickle) remember(op byte) error {
	bytes := 1
	if op == opLongBinPut || op == opLongBinGet {
		bytes = 4
	}
	n, err := p.number(bytes)
	if err != nil {
		return err
	}
	if op == opBinGet || op == opLongBinGet {
		v, ok := p.memo[uint32(n)]
		if !ok {
			return fmt.Errorf("value %d is not known", n)
		}
		return p.push(v)
	}
	v, err := p.pop()
	if err != nil {
		return err
	}
	if len(p.memo) >= maxValues {
		return errTooMany
	}
	p.memo[uint32(n)] = v
	return p.push(v)
}

// container runs an operation on lists, tuples and dictionaries.
func (p *pickle) container(op byte) error {
	switch op {
	case opMark:
		return p.push(mark{})
	case opEmptyList, opEmptyTuple:
		return p.push(&list{})
	case opEmptyDict:
		return p.push(&dict{values: map[string]any{}})
	case opTuple1, opTuple2, opTuple3:
		n := int(op-opTuple1) + 1
		values := make([]any, n)
		for i := n - 1; i >= 0; i-- {
			v, err := p.pop()
			if err != nil {
				return err
			}
			values[i] = v
		}
		return p.push(&list{values})
	case opTuple:
		values, err := p.popToMark()
		if err != nil {
			return err
		}
		return p.push(&list{append([]any(nil), values...)})
	case opAppend, opSetItem:
		n := 1
		if op == opSetItem {
			n = 2
		}
		if len(p.stack) < n {
			return errors.New("a value is expected on the stack")
		}
		values := p.stack[len(p.stack)-n:]
		p.stack = p.stack[:len(p.stack)-n]
		return p.add(values)
	case opAppends, opSetItems:
		values, err := p.popToMark()
		if err != nil {
			return err
		}
		return p.add(values)
	}
	return fmt.Errorf("operation 0x%02x is none of plain values", op)
}

// add adds values to the list or dictionary on the stack.
func (p *pickle) add(values []any) error {
	if len(p.stack) == 0 {
		return errors.New("a list or a dictionary is expected on the stack")
	}
	switch to := p.stack[len(p.stack)-1].(type) {
	case *list:
		to.values = append(to.values, values...)
	case *dict:
		if len(values)%2 != 0 {
			return errors.New("a key has no value")
		}
		for i := 0; i < len(values); i += 2 {
			key, ok := values[i].(string)
			if !ok {
				return errors.New("a key that is no text")
			}
			to.values[key] = values[i+1]
		}
	default:
		return errors.New("a list or a dictionary is expected on the stack")
	}
	return nil
}
