// Command interop runs the Go implementation's producer and consumer for the tests of interoperability.
//
//	interop produce -broker URL -topic TOPIC -schema JSON -blocks FILE [-repeat]
//	interop consume -broker URL -topics TOPIC,... -number N -hash HEX -weight W [-brief]
//
// Both print one JSON value a line and run until standard input ends. In JSON every byte string is base64, so that
// paths need not be UTF-8.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"os"
	"regexp"
	"strconv"
	"strings"

	log "github.com/inconshreveable/log15"
	"github.com/openrelayxyz/cardinal-streams/v2/delivery"
	"github.com/openrelayxyz/cardinal-streams/v2/transports"
	"github.com/openrelayxyz/cardinal-types"
)

const reorgThreshold = 128

type entry struct {
	Path  []byte `json:"path"`
	Value []byte `json:"value"`
}

type subBatch struct {
	ID      []byte   `json:"id"`
	Path    []byte   `json:"path"`
	Updates []entry  `json:"updates"`
	Deletes [][]byte `json:"deletes"`
}

type block struct {
	Number     int64      `json:"number"`
	Hash       []byte     `json:"hash"`
	Parent     []byte     `json:"parent"`
	Weight     string     `json:"weight"`
	Updates    []entry    `json:"updates,omitempty"`
	Deletes    [][]byte   `json:"deletes,omitempty"`
	SubBatches []subBatch `json:"sub_batches,omitempty"`
}

// update is what the consumer prints of a chain update, both lists in the order of the Go consumer: oldest first.
type update struct {
	Removed []block `json:"removed"`
	Added   []block `json:"added"`
}

func main() {
	log.Root().SetHandler(log.LvlFilterHandler(log.LvlWarn, log.StderrHandler))
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: interop produce|consume")
	}
	switch args[0] {
	case "produce":
		return produce(args[1:])
	case "consume":
		return consume(args[1:])
	}
	return fmt.Errorf("unknown command %q", args[0])
}

// produce prints "ready" once the producer has started. Each line that it reads is a number of blocks to publish next,
// after which it prints "sent". The Go producer reports no acknowledgements: the caller reads the topics and ends
// standard input afterwards.
func produce(args []string) error {
	flags := flag.NewFlagSet("produce", flag.ExitOnError)
	broker := flags.String("broker", "", "URL of the broker")
	topic := flags.String("topic", "", "default topic")
	schema := flags.String("schema", "{}", "expression to topic, as a JSON object")
	file := flags.String("blocks", "", "file with one block a line")
	repeat := flags.Bool("repeat", false, "publish blocks that another producer has published already")
	flags.Parse(args)
	topics := map[string]string{}
	if err := json.Unmarshal([]byte(*schema), &topics); err != nil {
		return err
	}
	blocks, err := load(*file)
	if err != nil {
		return err
	}
	producer, err := transports.ResolveProducer(*broker, *topic, topics)
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	out.Encode("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		count, err := strconv.Atoi(input.Text())
		if err != nil || count > len(blocks) {
			return fmt.Errorf("%q is not a number of blocks that are left", input.Text())
		}
		for _, one := range blocks[:count] {
			if *repeat {
				producer.PurgeReplayCache()
			}
			if err := publish(producer, one); err != nil {
				return fmt.Errorf("block %d: %w", one.Number, err)
			}
		}
		blocks = blocks[count:]
		out.Encode("sent")
	}
	return input.Err()
}

func load(name string) ([]block, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var blocks []block
	lines := json.NewDecoder(bufio.NewReaderSize(file, 1<<20))
	for {
		var one block
		if err := lines.Decode(&one); err == io.EOF {
			return blocks, nil
		} else if err != nil {
			return nil, err
		}
		blocks = append(blocks, one)
	}
}

func publish(producer transports.Producer, one block) error {
	weight, ok := new(big.Int).SetString(one.Weight, 10)
	if !ok {
		return fmt.Errorf("weight %q is no number", one.Weight)
	}
	deletes := make(map[string]struct{}, len(one.Deletes))
	for _, path := range one.Deletes {
		deletes[string(path)] = struct{}{}
	}
	announced := make(map[string]types.Hash, len(one.SubBatches))
	for _, sub := range one.SubBatches {
		announced[string(sub.Path)] = types.BytesToHash(sub.ID)
	}
	hash, parent := types.BytesToHash(one.Hash), types.BytesToHash(one.Parent)
	if err := producer.AddBlock(one.Number, hash, parent, weight, values(one.Updates), deletes, announced); err != nil {
		return err
	}
	for _, sub := range one.SubBatches {
		paths := make([]string, len(sub.Deletes))
		for i, path := range sub.Deletes {
			paths[i] = string(path)
		}
		if err := producer.SendBatch(types.BytesToHash(sub.ID), paths, values(sub.Updates)); err != nil {
			return err
		}
	}
	return nil
}

func values(entries []entry) map[string][]byte {
	result := make(map[string][]byte, len(entries))
	for _, one := range entries {
		result[string(one.Path)] = one.Value
	}
	return result
}

// consume prints "ready" once the consumer is, and every chain update: whole, or numbers and hashes only.
func consume(args []string) error {
	flags := flag.NewFlagSet("consume", flag.ExitOnError)
	broker := flags.String("broker", "", "URL of the broker")
	topics := flags.String("topics", "", "topics, separated by commas, the default topic first")
	number := flags.Int64("number", 0, "number of the last block before the first to deliver")
	last := flags.String("hash", "", "its hash")
	heavy := flags.String("weight", "0", "its weight")
	brief := flags.Bool("brief", false, "print numbers and hashes only")
	flags.Parse(args)
	hash, err := hex.DecodeString(*last)
	if err != nil {
		return err
	}
	weight, ok := new(big.Int).SetString(*heavy, 10)
	if !ok {
		return fmt.Errorf("weight %q is no number", *heavy)
	}
	names := strings.Split(*topics, ",")
	consumer, err := transports.ResolveConsumer(*broker, names[0], names, nil, 0, &delivery.ConsumerConfig{
		LastEmittedNum:  *number,
		LastHash:        types.BytesToHash(hash),
		LastWeight:      weight,
		ReorgThreshold:  reorgThreshold,
		TrackedPrefixes: []*regexp.Regexp{regexp.MustCompile(".*")},
	})
	if err != nil {
		return err
	}
	updates := make(chan *delivery.ChainUpdate, 100)
	consumer.Subscribe(updates)
	ready := consumer.Ready()
	if err := consumer.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	buffer := bufio.NewWriterSize(os.Stdout, 1<<16)
	out := json.NewEncoder(buffer)
	for {
		select {
		case one := <-updates:
			out.Encode(update{Removed: blocks(one.Removed(), true), Added: blocks(one.Added(), *brief)})
			one.Done()
		case <-ready:
			ready = nil
			out.Encode("ready")
		case <-ended:
			return nil
		}
		buffer.Flush()
	}
}

func blocks(batches []*delivery.PendingBatch, brief bool) []block {
	result := make([]block, 0, len(batches))
	for _, batch := range batches {
		one := block{Number: batch.Number, Hash: batch.Hash.Bytes(), Parent: batch.ParentHash.Bytes(), Weight: batch.Weight.String()}
		if !brief {
			for path, value := range batch.Values {
				one.Updates = append(one.Updates, entry{[]byte(path), value})
			}
			for path := range batch.Deletes {
				one.Deletes = append(one.Deletes, []byte(path))
			}
		}
		result = append(result, one)
	}
	return result
}
