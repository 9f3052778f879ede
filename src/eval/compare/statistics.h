// Is one model better than another on the same documents: paired t-test and paired bootstrap over the documents.
#pragma once
#include <cstdint>
#include <vector>

namespace lazy::eval {

// What a document contributes: the difference of two models' sums, and how many units (documents, words) it counts for.
struct PairedDifference {
  double difference = 0, units = 1;
};

struct TTest {
  double t = 0, degrees = 0;
  double p = 1;  // two-sided; NaN where there are too few documents
};

struct Interval {
  double low = 0, high = 0;
};

// Every group is a benchmark; the estimate is the mean over groups of (sum of differences / sum of units).
using Groups = std::vector<std::vector<PairedDifference>>;
double estimate(const Groups& groups);

// Of one group: Student's test that the documents' mean difference is zero. Of several: of their mean, every group's
// variance estimated from its own documents, with Welch and Satterthwaite's degrees of freedom. No difference
// anywhere has p = 1; the same difference in every document p = 0.
TTest paired_t_test(const Groups& groups);

// Percentile interval of the estimate over resamples of the documents, drawn with replacement within every group. Equal
// seeds give equal intervals on every machine.
Interval paired_bootstrap(const Groups& groups, double confidence = 0.95, int64_t resamples = 10000,
                          uint64_t seed = 42);

// The regularized incomplete beta function I_x(a, b): for a, b > 0 and 0 <= x <= 1, to a relative error of about 1e-11.
double incomplete_beta(double a, double b, double x);
// P(|T| >= |t|) of Student's distribution.
double student_two_sided(double t, double degrees);

}  // namespace lazy::eval
