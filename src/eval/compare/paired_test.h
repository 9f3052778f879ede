// Paired tests of two models on the same documents: Student's t-test and the bootstrap over documents.
#pragma once
#include <cstdint>
#include <vector>

#include "core/statistics.h"

namespace lazy::eval {

// A document's contribution: the difference of two models' sums, and its number of units (documents, words).
struct PairedDifference {
  double difference = 0, units = 1;
};

struct TTest {
  double t = 0, degrees = 0;
  double p = 1;  // two-sided; NaN where there are too few documents
};

// The documents of each benchmark. The estimate is the mean over benchmarks of (sum of differences / sum of units).
using PairedBenchmarks = std::vector<std::vector<PairedDifference>>;
double mean_difference(const PairedBenchmarks& benchmarks);

// The test that the estimate is zero. One benchmark: Student's test of the documents' mean difference. Several: of the
// mean, each benchmark's variance estimated from its own documents, with the degrees of freedom of Welch and
// Satterthwaite. p = 1 without any difference; p = 0 when every document has the same non-zero difference.
TTest paired_t_test(const PairedBenchmarks& benchmarks);

// Percentile interval of the estimate over resamples of the documents, drawn with replacement within every
// benchmark. Equal seeds give equal intervals on every machine.
ConfidenceInterval paired_bootstrap(const PairedBenchmarks& benchmarks, double confidence = 0.95,
                                    int64_t resamples = 10000, uint64_t seed = 42);

// P(|T| >= |t|) of Student's distribution.
double student_two_sided(double t, double degrees);

}  // namespace lazy::eval
