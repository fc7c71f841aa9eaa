// Blocks of a real geth under the rules of every fork, as its JSON-RPC prints them.
//
//	go run . ../blocks/geth.json.gz
//
// One chain goes through all forks: three blocks each, the first with every kind of transaction that the fork has, the
// second with what else a block can have (an uncle, withdrawals, requests), the third empty. geth's chain maker makes
// them; a node of the same version verifies and executes them again, and answers the requests.
package main

import (
	"compress/gzip"
	"crypto/ecdsa"
	"encoding/json"
	"fmt"
	"log"
	"math/big"
	"os"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/common/hexutil"
	"github.com/ethereum/go-ethereum/consensus/beacon"
	"github.com/ethereum/go-ethereum/consensus/ethash"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/eth"
	"github.com/ethereum/go-ethereum/eth/ethconfig"
	"github.com/ethereum/go-ethereum/node"
	"github.com/ethereum/go-ethereum/p2p"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/rpc"
	"github.com/ethereum/go-ethereum/version"
	"github.com/holiman/uint256"
)

const (
	chainID   = 61_680
	startTime = 1_600_000_000
	blockTime = 10 // of geth's chain maker
	perFork   = 3
	gwei      = 1_000_000_000
)

// Forks in order; the first block of the fork at place n has the number first(n).
var forks = []string{
	"frontier", "homestead", "tangerine whistle", "spurious dragon", "byzantium", "constantinople", "petersburg",
	"istanbul", "berlin", "london", "paris", "shanghai", "cancun", "prague", "osaka",
}

const (
	spuriousDragon = 3
	berlin         = 8
	london         = 9
	paris          = 10
	shanghai       = 11
	cancun         = 12
	prague         = 13
)

// Block 1 is empty: an uncle of block 3 needs a parent above the genesis block.
func first(fork int) int64 { return int64(2 + perFork*fork) }

func at(fork int) *big.Int { return big.NewInt(first(fork)) }

func timeOf(fork int) *uint64 {
	moment := uint64(startTime + blockTime*first(fork))
	return &moment
}

var (
	sender, other, authority = key(1), key(2), key(3)
	recipient                = common.HexToAddress("0x2222222222222222222222222222222222222222")
	depositContract          = common.HexToAddress("0xdede000000000000000000000000000000006110")

	transferred = crypto.Keccak256([]byte("Transfer(address,address,uint256)"))
	deposited   = crypto.Keccak256([]byte("DepositEvent(bytes,bytes,bytes,bytes,bytes)"))

	// Emits Transfer(caller, to, value) of transfer(to, value), and fails where the value is zero.
	token = code("602435801560365760005260043533"+"7f", transferred, "60206000a3005bfe")
	// Emits Transfer(from, to, id) of transferFrom(from, to, id), with every argument indexed.
	collectible = code("604435602435600435"+"7f", transferred, "60006000a400")
	// Emits an event without a topic, its input as data.
	anonymous = common.FromHex("366000600037" + "366000a000")
	// Emits its input as the event of a deposit.
	deposit = code("366000600037"+"7f", deposited, "366000a100")
)

func main() {
	if len(os.Args) != 2 {
		log.Fatal("name the file to write")
	}
	genesis := genesisOf()
	engine := beacon.New(ethash.NewFaker())
	count := perFork*len(forks) + 1
	_, blocks, _ := core.GenerateChainWithGenesis(genesis, engine, count, fill)

	client := serve(genesis, blocks)
	recorded := make([]map[string]any, 0, count+1)
	for number := 0; number <= count; number++ {
		recorded = append(recorded, record(client, number))
	}
	numbers := map[string]int64{}
	for fork, name := range forks {
		numbers[name] = first(fork)
	}
	write(os.Args[1], map[string]any{
		"client":  fmt.Sprintf("geth %d.%d.%d", version.Major, version.Minor, version.Patch),
		"chainId": chainID,
		"forks":   numbers,
		"blocks":  recorded,
	})
}

func genesisOf() *core.Genesis {
	rich := types.Account{Balance: new(big.Int).Mul(big.NewInt(1000), big.NewInt(params.Ether))}
	return &core.Genesis{
		Config: &params.ChainConfig{
			ChainID:                 big.NewInt(chainID),
			HomesteadBlock:          at(1),
			EIP150Block:             at(2),
			EIP155Block:             at(spuriousDragon),
			EIP158Block:             at(spuriousDragon),
			ByzantiumBlock:          at(4),
			ConstantinopleBlock:     at(5),
			PetersburgBlock:         at(6),
			IstanbulBlock:           at(7),
			BerlinBlock:             at(berlin),
			LondonBlock:             at(london),
			MergeNetsplitBlock:      at(paris),
			ShanghaiTime:            timeOf(shanghai),
			CancunTime:              timeOf(cancun),
			PragueTime:              timeOf(prague),
			OsakaTime:               timeOf(14),
			TerminalTotalDifficulty: big.NewInt(1), // geth requires one, and merges by number
			DepositContractAddress:  depositContract,
			BlobScheduleConfig:      params.DefaultBlobSchedule,
		},
		Difficulty: big.NewInt(131_072),
		GasLimit:   8_000_000,
		Timestamp:  startTime,
		ExtraData:  []byte("every fork"),
		Alloc: types.GenesisAlloc{
			address(sender):                  rich,
			address(other):                   rich,
			address(authority):               {Balance: big.NewInt(1)},
			depositContract:                  {Balance: new(big.Int), Code: deposit},
			params.BeaconRootsAddress:        {Nonce: 1, Balance: new(big.Int), Code: params.BeaconRootsCode},
			params.HistoryStorageAddress:     {Nonce: 1, Balance: new(big.Int), Code: params.HistoryStorageCode},
			params.WithdrawalQueueAddress:    {Nonce: 1, Balance: new(big.Int), Code: params.WithdrawalQueueCode},
			params.ConsolidationQueueAddress: {Nonce: 1, Balance: new(big.Int), Code: params.ConsolidationQueueCode},
		},
	}
}

func fill(index int, b *core.BlockGen) {
	number := int64(index + 1)
	b.SetCoinbase(common.BigToAddress(big.NewInt(0xc0ffee)))
	b.SetExtra([]byte("geth"))
	fork := int(number-2) / perFork
	if number < first(0) {
		return
	}
	if fork >= cancun {
		b.SetParentBeaconRoot(common.BigToHash(big.NewInt(0xbeac00 + number)))
	}
	switch (number - 2) % perFork {
	case 0:
		everyTransaction(b, fork)
	case 1:
		everythingElse(b, fork, index)
	}
}

// everyTransaction adds every kind of transaction that the fork has.
func everyTransaction(b *core.BlockGen, fork int) {
	unbound := types.Signer(types.HomesteadSigner{})
	if fork == 0 {
		unbound = types.FrontierSigner{}
	}
	add := func(key *ecdsa.PrivateKey, signer types.Signer, data types.TxData) common.Address {
		nonce := b.TxNonce(address(key))
		b.AddTx(types.MustSignNewTx(key, signer, data))
		return crypto.CreateAddress(address(key), nonce)
	}
	legacy := func(key *ecdsa.PrivateKey, to *common.Address, value int64, gas uint64, data []byte) types.TxData {
		price := big.NewInt(20 * gwei)
		return &types.LegacyTx{
			Nonce: b.TxNonce(address(key)), GasPrice: price, Gas: gas, To: to, Value: big.NewInt(value), Data: data,
		}
	}
	add(sender, unbound, legacy(sender, &recipient, 1, 21_000, nil))
	if fork >= spuriousDragon {
		add(other, b.Signer(), legacy(other, &recipient, params.Ether, 30_000, []byte("bound to the chain")))
	}
	made := add(sender, unbound, legacy(sender, nil, 0, 200_000, creating(token)))
	add(sender, unbound, legacy(sender, &made, 0, 100_000, transfer(recipient, 1_000_000)))
	add(other, unbound, legacy(other, &made, 0, 50_000, transfer(recipient, 0))) // fails
	unique := add(other, unbound, legacy(other, nil, 0, 200_000, creating(collectible)))
	add(other, unbound, legacy(other, &unique, 0, 100_000, transferFrom(address(sender), recipient, 7)))
	silent := add(sender, unbound, legacy(sender, nil, 5, 200_000, creating(anonymous)))
	add(sender, unbound, legacy(sender, &silent, 0, 100_000, []byte("said without a topic")))
	add(sender, unbound, legacy(sender, nil, 0, 60_000, common.FromHex("fe")))                // a creation that fails
	add(sender, unbound, legacy(sender, nil, 0, 100_000, common.FromHex("602a60006000a100"))) // logs, leaves no code

	accesses := types.AccessList{{Address: made, StorageKeys: []common.Hash{{1}, {2}}}, {Address: recipient}}
	data, gas := transfer(recipient, 2), uint64(150_000)
	if fork >= berlin {
		add(sender, b.Signer(), &types.AccessListTx{
			ChainID: big.NewInt(chainID), Nonce: b.TxNonce(address(sender)), GasPrice: big.NewInt(20 * gwei), Gas: gas,
			To: &made, Data: data, AccessList: accesses,
		})
	}
	if fork >= london {
		for _, to := range []*common.Address{&made, nil} {
			input := data
			if to == nil {
				input = creating(token)
			}
			add(other, b.Signer(), &types.DynamicFeeTx{
				ChainID: big.NewInt(chainID), Nonce: b.TxNonce(address(other)), GasTipCap: big.NewInt(gwei),
				GasFeeCap: big.NewInt(30 * gwei), Gas: gas, To: to, Data: input, AccessList: accesses,
			})
		}
	}
	if fork >= cancun {
		add(sender, b.Signer(), &types.BlobTx{
			ChainID: uint256.NewInt(chainID), Nonce: b.TxNonce(address(sender)), GasTipCap: uint256.NewInt(gwei),
			GasFeeCap: uint256.NewInt(30 * gwei), Gas: gas, To: made, Data: data, BlobFeeCap: uint256.NewInt(gwei),
			BlobHashes: []common.Hash{{1, 0xb1}, {1, 0xb2}}, // the version of KZG commitments
		})
	}
	if fork >= prague {
		wishes := []types.SetCodeAuthorization{
			wish(authority, b.TxNonce(address(authority)), made),
			wish(authority, 1_000, unique), // not its nonce: skipped
		}
		add(sender, b.Signer(), &types.SetCodeTx{
			ChainID: uint256.NewInt(chainID), Nonce: b.TxNonce(address(sender)), GasTipCap: uint256.NewInt(gwei),
			GasFeeCap: uint256.NewInt(30 * gwei), Gas: gas, To: address(authority), Data: data, AuthList: wishes,
		})
	}
}

// everythingElse adds an uncle before the merge, and withdrawals and requests as soon as the fork has them.
func everythingElse(b *core.BlockGen, fork, index int) {
	send := func(to *common.Address, value *big.Int, data []byte) {
		b.AddTx(types.MustSignNewTx(sender, b.Signer(), &types.LegacyTx{
			Nonce: b.TxNonce(address(sender)), GasPrice: big.NewInt(20 * gwei), Gas: 400_000, To: to, Value: value, Data: data,
		}))
	}
	send(&recipient, big.NewInt(2), nil)
	if fork < paris {
		uncle := types.CopyHeader(b.PrevBlock(index - 1).Header())
		uncle.Extra = []byte("uncle")
		b.AddUncle(uncle)
	}
	if fork >= shanghai {
		for _, amount := range []uint64{0, 1, 32 * gwei} {
			b.AddWithdrawal(&types.Withdrawal{Validator: 7 + amount, Address: recipient, Amount: amount})
		}
	}
	if fork >= prague {
		send(&params.WithdrawalQueueAddress, big.NewInt(1), append(make([]byte, 48), 0, 0, 0, 0, 0, 0, 0, 9))
		send(&params.ConsolidationQueueAddress, big.NewInt(1), append(make([]byte, 48), bytesOf(48, 0x11)...))
		send(&depositContract, new(big.Int), depositOf())
	}
}

// serve runs a node that has verified and executed the blocks.
func serve(genesis *core.Genesis, blocks []*types.Block) *rpc.Client {
	stack, err := node.New(&node.Config{P2P: p2p.Config{NoDiscovery: true, NoDial: true, MaxPeers: 0}})
	must(err)
	config := ethconfig.Defaults
	config.Genesis, config.NetworkId, config.SyncMode = genesis, chainID, ethconfig.FullSync
	backend, err := eth.New(stack, &config)
	must(err)
	must(stack.Start())
	_, err = backend.BlockChain().InsertChain(blocks)
	must(err)
	for backend.BlockChain().CurrentBlock().Number.Uint64() != uint64(len(blocks)) {
		time.Sleep(10 * time.Millisecond)
	}
	return stack.Attach()
}

func record(client *rpc.Client, number int) map[string]any {
	var block, receipts json.RawMessage
	must(client.Call(&block, "eth_getBlockByNumber", hexutil.Uint64(number), true))
	must(client.Call(&receipts, "eth_getBlockReceipts", hexutil.Uint64(number)))
	var named struct{ Uncles []common.Hash }
	must(json.Unmarshal(block, &named))
	uncles := make([]json.RawMessage, len(named.Uncles))
	for place := range named.Uncles {
		must(client.Call(&uncles[place], "eth_getUncleByBlockNumberAndIndex", hexutil.Uint64(number), hexutil.Uint(place)))
	}
	return map[string]any{"block": block, "receipts": receipts, "uncles": uncles}
}

func write(name string, content any) {
	file, err := os.Create(name)
	must(err)
	packed, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	must(err)
	must(json.NewEncoder(packed).Encode(content))
	must(packed.Close())
	must(file.Close())
}

// code joins hex texts around the topic of an event.
func code(before string, topic []byte, after string) []byte {
	return append(append(common.FromHex(before), topic...), common.FromHex(after)...)
}

// creating is init code that leaves the code behind.
func creating(code []byte) []byte {
	return append(append([]byte{0x60, byte(len(code))}, common.FromHex("80600b6000396000f3")...), code...)
}

func call(signature string, arguments ...[]byte) []byte {
	data := crypto.Keccak256([]byte(signature))[:4]
	for _, argument := range arguments {
		data = append(data, common.LeftPadBytes(argument, 32)...)
	}
	return data
}

func transfer(to common.Address, value int64) []byte {
	return call("transfer(address,uint256)", to[:], big.NewInt(value).Bytes())
}

func transferFrom(from, to common.Address, id int64) []byte {
	return call("transferFrom(address,address,uint256)", from[:], to[:], big.NewInt(id).Bytes())
}

// depositOf is the data of a deposit's event: five byte strings, as the ABI encodes them.
func depositOf() []byte {
	var heads, tails []byte
	for place, size := range []int{48, 32, 8, 96, 8} {
		heads = append(heads, common.LeftPadBytes(big.NewInt(int64(5*32+len(tails))).Bytes(), 32)...)
		tails = append(tails, common.LeftPadBytes([]byte{byte(size)}, 32)...)
		tails = append(tails, common.RightPadBytes(bytesOf(size, byte(0xd1+place)), (size+31)/32*32)...)
	}
	return append(heads, tails...)
}

func wish(key *ecdsa.PrivateKey, nonce uint64, to common.Address) types.SetCodeAuthorization {
	unsigned := types.SetCodeAuthorization{ChainID: *uint256.NewInt(chainID), Address: to, Nonce: nonce}
	signed, err := types.SignSetCode(key, unsigned)
	must(err)
	return signed
}

func key(number byte) *ecdsa.PrivateKey {
	made, err := crypto.ToECDSA(bytesOf(32, number))
	must(err)
	return made
}

func address(key *ecdsa.PrivateKey) common.Address { return crypto.PubkeyToAddress(key.PublicKey) }

func bytesOf(size int, value byte) []byte {
	made := make([]byte, size)
	for place := range made {
		made[place] = value
	}
	return made
}

func must(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
