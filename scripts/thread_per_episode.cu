// Collection with one CUDA thread per episode: a baseline of scripts/benchmark.py; thread_per_episode.py calls it.
//
// Everything of a step is in its thread's own loop: actor, sampling, critic, account (preset plan), barrier, diversity
// window, curiosity model, reward, restart; a second loop back in time makes the advantages. Float32 throughout.
//
// BLOCK outputs of a layer are summed at once. 1 is the loop as one writes it down. 8 keeps eight independent sums in
// registers, loads four weights at a time and reads each activation once for eight outputs: the most that a thread of
// its own allows without sharing work with its neighbours.
//
// nvcc makes a shared library of this file. So does a C++ compiler (-x c++), which runs the episodes one after another:
// a way to check the arithmetic without a GPU.

#include <chrono>
#include <cmath>
#include <cstdint>
#include <vector>

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define DEVICE __device__ __forceinline__
#else
#define DEVICE inline
#endif

constexpr int FEATURES = 51, ACTIONS = 45, WINDOW = 100, SEEN = 32, DIRECTIONS = 3;
constexpr int INPUTS = FEATURES + 3, WIDEST = 512;
constexpr int LAYERS = 11;  // 3 of the actor, 6 of the critic, 2 of the curiosity model
constexpr int WIDTHS[LAYERS][2] = {{INPUTS, 128}, {128, 64}, {64, ACTIONS}, {INPUTS, 512}, {512, 384}, {384, 256},
                                   {256, 128}, {128, 64}, {64, 1}, {SEEN + DIRECTIONS, 64}, {64, SEEN}};

struct Layer {
    const float *weight, *bias;  // [out, in], [out]
};

struct Rules {
    float capital, max_position, spread, reserve, ruin, profit, loss;  // reserve and ruin in currency
    float barrier_scale, diversity_scale, curiosity_scale, curiosity_max, risk_weight, gamma, lam, slope;
    int32_t episode_length, barrier_max_bars;
    float exposure[ACTIONS], fee_rate[ACTIONS];
};

struct Inputs {  // [T, F], [T], [N], [L, N], [L, N]
    const float *features, *close;
    const int32_t *starts;
    const float *uniforms;
    const int32_t *restarts;
    Layer layers[LAYERS];
    int32_t bars, lanes, steps;
};

struct Outputs {  // [L, N] each
    int32_t *action;
    float *log_prob, *value, *reward, *equity, *position, *advantage, *returns;
    uint8_t *done;
};

DEVICE float sign(float x) { return float((x > 0) - (x < 0)); }
DEVICE int clip(int i, int n) { return i < 0 ? 0 : i < n ? i : n - 1; }

DEVICE constexpr int largest_divisor(int n, int most) {
    while (n % most) --most;
    return most;
}

template <int BLOCK, int LAYER>
DEVICE void dense(const Inputs &in, const float *x, float *y, float slope) {  // slope 1: no activation
    constexpr int IN = WIDTHS[LAYER][0], OUT = WIDTHS[LAYER][1];
    constexpr int ROWS = largest_divisor(OUT, BLOCK), STEP = BLOCK > 1 && IN % 4 == 0 ? 4 : 1;
    constexpr int UNROLL = BLOCK > 1 ? 2 : 8;
    const float *__restrict__ weight = in.layers[LAYER].weight, *__restrict__ bias = in.layers[LAYER].bias;
    for (int o = 0; o < OUT; o += ROWS) {
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sum[r] = bias[o + r];
#pragma unroll UNROLL
        for (int i = 0; i < IN; i += STEP) {
            struct alignas(4 * STEP) Piece {
                float at[STEP];
            };
            const Piece a = *reinterpret_cast<const Piece *>(x + i);
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                const Piece w = *reinterpret_cast<const Piece *>(weight + (o + r) * IN + i);
#pragma unroll
                for (int k = 0; k < STEP; ++k) sum[r] += w.at[k] * a.at[k];
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) y[o + r] = sum[r] > 0 ? sum[r] : slope * sum[r];
    }
}

struct Account {
    int bar, step;
    float cash, position;
    int barrier_step;
    float barrier_entry;
    bool barrier_active;
};

// The latest WINDOW actions of the episode, and how often each occurs in them.
struct Diversity {
    uint8_t ring[WINDOW], counts[ACTIONS];
};

DEVICE void begin(Account &account, Diversity &diversity, int bar, const Rules &rules) {
    account = {bar, 0, rules.capital, 0.f, 0, 0.f, false};
    for (int a = 0; a < ACTIONS; ++a) diversity.counts[a] = 0;
}

DEVICE float diversity_penalty(Diversity &diversity, int step, int action) {
    const int slot = step % WINDOW, n = step + 1 < WINDOW ? step + 1 : WINDOW, most = n < ACTIONS ? n : ACTIONS;
    if (step >= WINDOW) --diversity.counts[diversity.ring[slot]];
    diversity.ring[slot] = uint8_t(action);
    ++diversity.counts[action];
    if (most < 2) return 0;
    float entropy = 0;
    for (int a = 0; a < ACTIONS; ++a) {
        const float p = float(diversity.counts[a]) / n;
        if (diversity.counts[a]) entropy -= p * logf(p);
    }
    return fminf(fmaxf(entropy / logf(float(most)) - 1, -1.f), 0.f);
}

template <int BLOCK>
DEVICE float value(const Inputs &in, const float *obs, float *a, float *b, float slope) {
    dense<BLOCK, 3>(in, obs, a, slope);
    dense<BLOCK, 4>(in, a, b, slope);
    dense<BLOCK, 5>(in, b, a, slope);
    dense<BLOCK, 6>(in, a, b, slope);
    dense<BLOCK, 7>(in, b, a, slope);
    dense<BLOCK, 8>(in, a, b, 1);
    return b[0];
}

// The mean squared error of the forecast of the next bar's features.
template <int BLOCK>
DEVICE float surprise(const Inputs &in, int bar, float direction, float *a, float *b, float slope) {
    if (bar >= in.bars - 1) return 0;
    for (int i = 0; i < SEEN; ++i) a[i] = in.features[bar * FEATURES + i];
    for (int d = 0; d < DIRECTIONS; ++d) a[SEEN + d] = d == int(direction) + 1;
    dense<BLOCK, 9>(in, a, b, slope);
    dense<BLOCK, 10>(in, b, a, 1);
    float sum = 0;
    for (int i = 0; i < SEEN; ++i) {
        const float error = a[i] - in.features[(bar + 1) * FEATURES + i];
        sum += error * error;
    }
    return sum / SEEN;
}

DEVICE void observe(const Inputs &in, const Account &account, const Rules &rules, float *obs) {
    for (int i = 0; i < FEATURES; ++i) obs[i] = in.features[account.bar * FEATURES + i];
    obs[FEATURES] = (account.cash + account.position * in.close[account.bar]) / rules.capital;
    obs[FEATURES + 1] = account.position / rules.max_position;
    obs[FEATURES + 2] = rules.spread;
}

DEVICE int sample(const float *logits, float uniform, float &log_prob) {
    float most = logits[0], total = 0, sum = 0;
    for (int a = 1; a < ACTIONS; ++a) most = fmaxf(most, logits[a]);
    for (int a = 0; a < ACTIONS; ++a) total += expf(logits[a] - most);
    int action = 0;
    for (int a = 0; a < ACTIONS - 1; ++a) {
        sum += expf(logits[a] - most);
        action += sum <= uniform * total;
    }
    log_prob = logits[action] - most - logf(total);
    return action;
}

// Units bought: towards the action's exposure in full, unless the cash reserve cuts a purchase.
DEVICE float trade(Account &account, float exposure, float fee_rate, float close, const Rules &rules) {
    const float target = exposure * rules.max_position;
    float want = target - account.position;
    if (fabsf(want) < 1e-6f * rules.max_position) return 0;
    const float affordable = (account.cash - rules.reserve) / (close * (1 + fee_rate));
    const float room = fmaxf(fmaxf(affordable, -account.position), 0.f);
    const bool raises = want > 0 && account.position + want > fmaxf(account.position, 0.f);
    const bool is_cut = raises && want > room;
    if (is_cut) want = room;
    account.position = is_cut ? account.position + want : target;
    account.cash -= want * close + fabsf(want) * close * fee_rate;
    return want;
}

// The label of the triple barrier on the next close; `before` is the position before the trade.
DEVICE float barrier(Account &account, float before, bool was_flat, bool is_flat, float close, float next,
                     const Rules &rules) {
    if (!is_flat && (was_flat || sign(account.position) != sign(before))) {
        account.barrier_active = true;
        account.barrier_entry = close;
        account.barrier_step = account.step;
    } else if (is_flat) {
        account.barrier_active = false;
    }
    const float direction = sign(account.position);
    const bool above = next >= account.barrier_entry * rules.profit, below = next <= account.barrier_entry * rules.loss;
    const bool is_expired = account.step + 1 - account.barrier_step >= rules.barrier_max_bars;
    if (!account.barrier_active || !(above || below || is_expired)) return 0;
    account.barrier_active = false;
    return above ? direction : below ? -direction : direction * sign(next - account.barrier_entry);
}

template <int BLOCK>
DEVICE void episode(int lane, const Inputs &in, const Rules &rules, const Outputs &out) {
    alignas(16) float obs[INPUTS + 2], a[WIDEST], b[WIDEST];
    Account account;
    Diversity diversity;
    begin(account, diversity, in.starts[lane], rules);
    for (int t = 0; t < in.steps; ++t) {
        const int64_t at = int64_t(t) * in.lanes + lane;
        observe(in, account, rules, obs);
        out.value[at] = value<BLOCK>(in, obs, a, b, rules.slope);
        dense<BLOCK, 0>(in, obs, a, rules.slope);
        dense<BLOCK, 1>(in, a, b, rules.slope);
        dense<BLOCK, 2>(in, b, a, 1);
        const int action = sample(a, in.uniforms[at], out.log_prob[at]);
        const float exposure = rules.exposure[action];

        const float close = in.close[account.bar], next = in.close[clip(account.bar + 1, in.bars)];
        const float equity = account.cash + account.position * close, before = account.position;
        trade(account, exposure, rules.fee_rate[action], close, rules);
        const float equity_after = account.cash + account.position * next;
        const bool was_flat = fabsf(before) < 0.01f * rules.max_position;
        const bool is_flat = fabsf(account.position) < 0.01f * rules.max_position;
        const float label = barrier(account, before, was_flat, is_flat, close, next, rules);
        const float direction = is_flat ? 0.f : sign(account.position);
        const float base = 1000 * log1pf((next - close) / close) * direction;
        const float penalty = diversity_penalty(diversity, account.step, action);
        const float bonus = fminf(surprise<BLOCK>(in, account.bar, sign(exposure), a, b, rules.slope), rules.curiosity_max);
        const float drawdown = fmaxf(0.f, 1 - equity / rules.capital);
        out.action[at] = action;
        out.equity[at] = equity_after;
        out.position[at] = account.position;
        out.reward[at] = base * (1 + rules.barrier_scale * label) + rules.diversity_scale * penalty
                         + rules.curiosity_scale * bonus - rules.risk_weight * drawdown;
        ++account.bar;
        ++account.step;
        const bool done = equity_after <= rules.ruin || account.step >= rules.episode_length;
        out.done[at] = done;
        if (done) begin(account, diversity, clip(in.restarts[at], in.bars), rules);
    }
    observe(in, account, rules, obs);
    float following = value<BLOCK>(in, obs, a, b, rules.slope), advantage = 0;
    for (int t = in.steps - 1; t >= 0; --t) {
        const int64_t at = int64_t(t) * in.lanes + lane;
        const float goes_on = out.done[at] ? 0.f : rules.gamma;
        const float v = out.value[at];
        advantage = out.reward[at] + goes_on * following - v + goes_on * rules.lam * advantage;
        out.advantage[at] = advantage;
        out.returns[at] = advantage + v;
        following = v;
    }
}

#ifdef __CUDACC__
template <int BLOCK>
__global__ void __launch_bounds__(32) episodes(const Inputs in, const Rules rules, const Outputs out) {
    const int lane = blockIdx.x * blockDim.x + threadIdx.x;
    if (lane < in.lanes) episode<BLOCK>(lane, in, rules, out);
}

// A warp a block: few lanes spread over as many multiprocessors as there are.
template <int BLOCK>
void launch(const Inputs &in, const Rules &rules, const Outputs &out) {
    episodes<BLOCK><<<(in.lanes + 31) / 32, 32>>>(in, rules, out);
}

// Device memory, freed at the end; the first CUDA error of all calls.
struct Memory {
    std::vector<void *> owned;
    cudaError_t error = cudaSuccess;

    void check(cudaError_t code) {
        if (error == cudaSuccess) error = code;
    }
    template <typename T>
    T *allocate(int64_t n) {
        void *p = nullptr;
        check(cudaMalloc(&p, n * sizeof(T)));
        owned.push_back(p);
        return static_cast<T *>(p);
    }
    template <typename T>
    const T *upload(const T *host, int64_t n) {
        T *p = allocate<T>(n);
        if (error == cudaSuccess) check(cudaMemcpy(p, host, n * sizeof(T), cudaMemcpyHostToDevice));
        return p;
    }
    template <typename T>
    void download(const T *device, T *host, int64_t n) {
        if (error == cudaSuccess) check(cudaMemcpy(host, device, n * sizeof(T), cudaMemcpyDeviceToHost));
    }
    ~Memory() {
        for (void *p : owned) cudaFree(p);
    }
};

template <int BLOCK>
const char *collect(Inputs in, const Rules &rules, const Outputs &host, int most, float budget, float *milliseconds) {
    Memory memory;
    const int64_t rows = int64_t(in.steps) * in.lanes;
    in.features = memory.upload(in.features, int64_t(in.bars) * FEATURES);
    in.close = memory.upload(in.close, in.bars);
    in.starts = memory.upload(in.starts, in.lanes);
    in.uniforms = memory.upload(in.uniforms, rows);
    in.restarts = memory.upload(in.restarts, rows);
    for (int i = 0; i < LAYERS; ++i) {
        in.layers[i].weight = memory.upload(in.layers[i].weight, int64_t(WIDTHS[i][0]) * WIDTHS[i][1]);
        in.layers[i].bias = memory.upload(in.layers[i].bias, WIDTHS[i][1]);
    }
    const Outputs out = {memory.allocate<int32_t>(rows), memory.allocate<float>(rows), memory.allocate<float>(rows),
                         memory.allocate<float>(rows),   memory.allocate<float>(rows), memory.allocate<float>(rows),
                         memory.allocate<float>(rows),   memory.allocate<float>(rows), memory.allocate<uint8_t>(rows)};
    cudaEvent_t start, stop;
    memory.check(cudaEventCreate(&start));
    memory.check(cudaEventCreate(&stop));
    if (memory.error != cudaSuccess) return cudaGetErrorString(memory.error);
    Inputs few = in;
    few.steps = in.steps < 5 ? in.steps : 5;
    launch<BLOCK>(few, rules, out);  // loads the program
    memory.check(cudaGetLastError());
    memory.check(cudaDeviceSynchronize());
    float spent = 0;
    for (int i = 0; i < most && memory.error == cudaSuccess && spent < budget; ++i) {
        memory.check(cudaEventRecord(start));
        launch<BLOCK>(in, rules, out);
        memory.check(cudaGetLastError());
        memory.check(cudaEventRecord(stop));
        memory.check(cudaEventSynchronize(stop));
        if (memory.error == cudaSuccess) memory.check(cudaEventElapsedTime(&milliseconds[i], start, stop));
        spent += milliseconds[i];
    }
    memory.download(out.action, host.action, rows);
    memory.download(out.log_prob, host.log_prob, rows);
    memory.download(out.value, host.value, rows);
    memory.download(out.reward, host.reward, rows);
    memory.download(out.equity, host.equity, rows);
    memory.download(out.position, host.position, rows);
    memory.download(out.advantage, host.advantage, rows);
    memory.download(out.returns, host.returns, rows);
    memory.download(out.done, host.done, rows);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    return memory.error == cudaSuccess ? nullptr : cudaGetErrorString(memory.error);
}
#else
template <int BLOCK>
const char *collect(const Inputs &in, const Rules &rules, const Outputs &out, int most, float budget, float *milliseconds) {
    float spent = 0;
    for (int i = 0; i < most && spent < budget; ++i) {
        const auto start = std::chrono::steady_clock::now();
        for (int lane = 0; lane < in.lanes; ++lane) episode<BLOCK>(lane, in, rules, out);
        milliseconds[i] = std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - start).count();
        spent += milliseconds[i];
    }
    return nullptr;
}
#endif

// At most `most` collections, none begun after `budget` milliseconds of them; the time of each in `milliseconds`, which
// comes zeroed. All pointers are the host's. Returns null, or what went wrong.
extern "C" const char *thread_per_episode(int block, const Inputs *in, const Rules *rules, const Outputs *out, int most,
                                          float budget, float *milliseconds) {
    if (block == 1) return collect<1>(*in, *rules, *out, most, budget, milliseconds);
    if (block == 8) return collect<8>(*in, *rules, *out, most, budget, milliseconds);
    return "block must be 1 or 8";
}
